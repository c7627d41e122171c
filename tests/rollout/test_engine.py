"""The sampler against plain teacher forcing: same greedy ids, same log-probabilities, whoever shares the batch."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.hf.processor import EncodedPrompt
from gui_owl_jax.models import config as model_config
from gui_owl_jax.models import layout, qwen_vl
from gui_owl_jax.rollout.engine import Engine, SamplerConfig, bucket, request_seed, restrict

MODEL = model_config.get_preset("nano")
SAMPLER = SamplerConfig(
    max_new_tokens=6, row_buckets=(2, 4), length_buckets=(32,), patch_buckets=(32,), temperature=0.7
)


@pytest.fixture(scope="module")
def params():
    return jax.tree.map(lambda x: x * 3, qwen_vl.init_params(MODEL, jax.random.key(1)))


def prompt(rng, text: int, grid: tuple[int, int] | None) -> EncodedPrompt:
    ids = list(rng.integers(1, 900, text))
    if grid is None:
        return EncodedPrompt(np.array(ids, np.int32), ())
    patches = rng.integers(0, 255, (grid[0] * grid[1], 768), dtype=np.uint8)
    pads = [MODEL.image_token_id] * (len(patches) // 4)
    ids = ids[:2] + [MODEL.vision_start_token_id, *pads, MODEL.vision_end_token_id] + ids[2:]
    return EncodedPrompt(np.array(ids, np.int32), (layout.ImagePatches(patches, grid),))


@pytest.fixture(scope="module")
def prompts():
    rng = np.random.default_rng(0)
    return [
        prompt(rng, 5, (4, 6)),
        prompt(rng, 11, None),
        prompt(rng, 9, (2, 4)),
        prompt(rng, 20, (4, 4)),
        prompt(rng, 3, None),
    ]


def full_logits(params, prompt: EncodedPrompt, response: np.ndarray) -> np.ndarray:
    """Logits [T + 1, V] that predict the response and what follows it, by one full forward pass."""
    tokens = np.concatenate([prompt.ids, response]).astype(np.int32)
    example = layout.Example(tokens, np.zeros(len(tokens), np.float32), prompt.images, {})
    batch = layout.lay_out_rows([[example]], MODEL, 40, 32)
    hidden = qwen_vl.hidden_states(MODEL, params, batch)
    return np.asarray(qwen_vl.logits(MODEL, params, hidden))[0, len(prompt.ids) - 1 : len(tokens)]


def test_greedy_ids_are_those_of_full_forward_passes(params, prompts):
    engine = Engine(MODEL, dataclasses.replace(SAMPLER, temperature=0.0), stop_ids=())
    seeds = np.stack([request_seed(i) for i in range(len(prompts))])
    for p, sample in zip(prompts, engine.generate(params, prompts, seeds)):
        assert len(sample.token_ids) == 6 and sample.truncated
        logits = full_logits(params, p, sample.token_ids)
        np.testing.assert_array_equal(logits[:-1].argmax(-1), sample.token_ids)


def test_log_probabilities_equal_teacher_forcing(params, prompts):
    engine = Engine(MODEL, SAMPLER, stop_ids=())
    seeds = np.stack([request_seed(7, i) for i in range(len(prompts))])
    for p, sample in zip(prompts, engine.generate(params, prompts, seeds)):
        logits = full_logits(params, p, sample.token_ids)[:-1]
        rows = np.arange(len(sample.token_ids))
        expected = jax.nn.log_softmax(logits)[rows, sample.token_ids]
        np.testing.assert_allclose(sample.logps, expected, atol=5e-5)
        expected = jax.nn.log_softmax(logits / 0.7)[rows, sample.token_ids]
        np.testing.assert_allclose(sample.sampler_logps, expected, atol=5e-5)


def test_a_request_does_not_depend_on_its_batch(params, prompts):
    engine = Engine(MODEL, SAMPLER, stop_ids=())
    seeds = np.stack([request_seed(3, i) for i in range(len(prompts))])
    together = engine.generate(params, prompts, seeds)
    alone = [engine.generate(params, [p], s[None])[0] for p, s in zip(prompts, seeds)]
    for a, b in zip(together, alone):
        np.testing.assert_array_equal(a.token_ids, b.token_ids)
        np.testing.assert_allclose(a.logps, b.logps, rtol=5e-5)  # batches of other shapes add up in another order
    others = engine.generate(params, prompts, seeds[::-1].copy())
    assert any((a.token_ids != b.token_ids).any() for a, b in zip(together, others))


def test_a_stop_token_ends_the_response_and_is_kept(params, prompts):
    free = Engine(MODEL, SAMPLER, stop_ids=()).generate(params, prompts[:1], request_seed(5)[None])[0]
    stop = int(free.token_ids[2])
    first = int(np.flatnonzero(free.token_ids == stop)[0])
    ended = Engine(MODEL, SAMPLER, stop_ids=(stop,)).generate(params, prompts[:1], request_seed(5)[None])[0]
    np.testing.assert_array_equal(ended.token_ids, free.token_ids[: first + 1])
    assert not ended.truncated


def test_restrict_against_brute_force():
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(50, 12)).astype(np.float32) * 2
    for top_k, top_p in ((0, 1.0), (3, 1.0), (0, 0.6), (4, 0.5), (1, 0.9)):
        got = np.asarray(restrict(jnp.asarray(logits), top_k, top_p))
        for row, kept in zip(logits, np.isfinite(got)):
            order = np.argsort(-row)
            if top_k:
                order = order[:top_k]
            probs = np.exp(row[order] - row[order].max())
            probs /= probs.sum()
            before = np.cumsum(probs) - probs
            assert set(order[before < top_p]) == set(np.flatnonzero(kept))


def test_sampling_follows_the_distribution(params, prompts):
    """2,000 first tokens drawn with different keys: frequencies of the likeliest ids lie within 5 standard errors."""
    sampler = dataclasses.replace(SAMPLER, max_new_tokens=1, row_buckets=(64,), temperature=1.0, top_k=5)
    engine = Engine(MODEL, sampler, stop_ids=())
    count = 2000
    seeds = np.stack([request_seed(11, i) for i in range(count)])
    samples = engine.generate(params, [prompts[1]] * count, seeds)
    ids = np.array([s.token_ids[0] for s in samples])
    logits = full_logits(params, prompts[1], np.zeros(0, np.int32))[0]
    top = np.argsort(-logits)[:5]
    probs = np.exp(logits[top] - logits[top].max())
    probs /= probs.sum()
    for token, p in zip(top, probs):
        assert abs((ids == token).mean() - p) < 5 * np.sqrt(p * (1 - p) / count) + 1e-9
    assert set(ids) <= set(top)


def test_requests_beyond_the_buckets_are_refused(params, prompts):
    with pytest.raises(ConfigError, match="length_buckets"):
        Engine(MODEL, SAMPLER, ()).generate(params, [prompt(np.random.default_rng(0), 40, None)], request_seed(0)[None])
    with pytest.raises(ConfigError, match="row_buckets"):
        SamplerConfig(row_buckets=(8, 4))
    with pytest.raises(ConfigError, match="out of range"):
        SamplerConfig(top_p=0.0)
    assert bucket(9, (8, 16), "x") == 16


def test_request_seeds_differ():
    seeds = {tuple(request_seed(a, b)) for a in range(30) for b in range(30)}
    assert len(seeds) == 900


def test_equal_prompts_are_read_once(params, prompts, monkeypatch):
    """The same samples, from fewer rows of prefill: prompts 0 0 2 0 make two of them."""
    rows = []
    prefill = qwen_vl.prefill
    monkeypatch.setattr(qwen_vl, "prefill", lambda *a, **k: rows.append(a[2]["tokens"].shape[0]) or prefill(*a, **k))
    twin = EncodedPrompt(prompts[0].ids.copy(), prompts[0].images)
    group = [prompts[0], twin, prompts[2], twin]
    seeds = np.stack([request_seed(i) for i in range(4)])
    sampler = dataclasses.replace(SAMPLER, max_new_tokens=5)  # of its own, so that nothing is compiled yet
    plain = Engine(MODEL, sampler, stop_ids=(7,)).generate(params, group, seeds)
    shared = Engine(MODEL, dataclasses.replace(sampler, share_prompts=True), stop_ids=(7,)).generate(
        params, group, seeds
    )
    assert rows == [4, 2]
    for one, other in zip(plain, shared, strict=True):
        np.testing.assert_array_equal(one.token_ids, other.token_ids)
        np.testing.assert_allclose(one.logps, other.logps, rtol=0, atol=1e-5)
    assert not np.array_equal(shared[0].token_ids, shared[1].token_ids)  # each row still draws for itself
