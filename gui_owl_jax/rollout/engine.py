"""Sampling: prompts in, token ids with fp32 log-probabilities out, one jitted loop per shape.

Prompts are padded to the smallest length bucket that holds the longest of them, prefilled together, and decoded in
one `lax.while_loop` with a KV cache. Each row draws from its own PRNG key, so what a row samples does not depend on
which other rows share its batch, nor on the mesh that a batch is split over.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.hf.processor import EncodedPrompt
from gui_owl_jax.models import layout, qwen_vl
from gui_owl_jax.models.config import QwenVLConfig
from gui_owl_jax.ops import partition
from gui_owl_jax.rollout import serving


@dataclasses.dataclass(frozen=True)
class SamplerConfig:
    """How to sample.

    Attributes:
      max_new_tokens: T, the longest response.
      temperature: of the sampling distribution; 0 is greedy.
      top_k: keep the k likeliest tokens; 0 keeps all.
      top_p: keep the smallest set of likeliest tokens whose mass reaches top_p; 1 keeps all.
      row_buckets: batch sizes that are compiled, ascending; larger requests are cut into several batches.
      length_buckets: prompt lengths that are compiled, ascending.
      patch_buckets: patch budgets that are compiled, ascending.
      share_prompts: read equal prompts of a batch once (a group's first turn is one prompt, G times over) and hand each
        row its copy of the cache. Numbers of different prompts are rounded up to powers of two, each a program of its
        own to compile. Not on a mesh, where a row's copy would come from another chip.
    """

    max_new_tokens: int = 32
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    row_buckets: tuple[int, ...] = (8, 64)
    length_buckets: tuple[int, ...] = (64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192)
    patch_buckets: tuple[int, ...] = (64, 128, 256, 1024, 4096, 8192, 16384, 32768)
    share_prompts: bool = False

    def __post_init__(self):
        for name in ("row_buckets", "length_buckets", "patch_buckets"):
            buckets = getattr(self, name)
            if not buckets or list(buckets) != sorted(set(buckets)):
                raise ConfigError(f"sampler.{name} must be ascending and not empty, not {buckets}")
        if self.max_new_tokens < 1 or self.temperature < 0 or not 0 < self.top_p <= 1 or self.top_k < 0:
            raise ConfigError(f"sampler has a value out of range: {self}")


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """One response.

    Attributes:
      token_ids: int32 [T], ends with a stop token unless `truncated`.
      logps: f32 [T], log-probabilities under the policy at temperature 1.
      sampler_logps: f32 [T], under the distribution the ids were drawn from (0 for greedy).
      truncated: the response hit max_new_tokens.
    """

    token_ids: np.ndarray
    logps: np.ndarray
    sampler_logps: np.ndarray
    truncated: bool


def bucket(value: int, buckets: Sequence[int], what: str) -> int:
    """The smallest of `buckets` that is at least `value`; raises ConfigError when none is."""
    for size in buckets:
        if value <= size:
            return size
    raise ConfigError(f"sampler.{what}: {value} is above the largest bucket {buckets[-1]}; add a larger one")


def restrict(logits: jax.Array, top_k: int, top_p: float) -> jax.Array:
    """Sets logits [B, V] outside the top-k and top-p sets to -inf.

    With probabilities [0.5, 0.3, 0.2] and top_p 0.6 the first two are kept: a token is dropped when the mass of the
    strictly likelier ones already reaches top_p.
    """
    if top_k:
        kth = jax.lax.top_k(logits, top_k)[0][:, -1:]
        logits = jnp.where(logits < kth, -jnp.inf, logits)
    if top_p < 1:
        order = jnp.argsort(-logits, axis=-1)
        probs = jax.nn.softmax(jnp.take_along_axis(logits, order, axis=-1), axis=-1)
        before = jnp.cumsum(probs, axis=-1) - probs
        dropped = jnp.take_along_axis(before >= top_p, jnp.argsort(order, axis=-1), axis=-1)
        logits = jnp.where(dropped, -jnp.inf, logits)
    return logits


@functools.partial(jax.jit, static_argnames=("config", "sampler", "stop_ids", "dtype", "mesh"))
def _generate(params, batch, source, active, keys, *, config, sampler, stop_ids, dtype, mesh):
    """Prefill and decode; returns ids, logps, sampler_logps [B, T] and the number of ids kept [B].

    `source` int [B] says which row of the batch of prompts each row continues; None: its own. On a mesh, rows come and
    go as `serving.put_rows` splits them.
    """
    with partition.on_mesh(mesh):
        split = functools.partial(jax.tree.map, lambda x: partition.constrain(x, partition.ROWS))
        out = _decode(params, split(batch), source, split(active), split(keys), config, sampler, stop_ids, dtype)
        return jax.tree.map(lambda x: partition.constrain(x, serving.REQUESTS), out)


def _decode(params, batch, source, active, keys, config, sampler, stop_ids, dtype):
    rows, prompt_length = len(keys), batch["tokens"].shape[1]
    new, lengths, next_positions = sampler.max_new_tokens, batch["lengths"], batch["next_position"]
    hidden, cache = qwen_vl.prefill(
        config, params, batch, prompt_length + new, dtype=jnp.dtype(dtype), implementation="auto"
    )
    if source is not None:
        hidden, lengths, next_positions = hidden[source], lengths[source], next_positions[source]
        cache = jax.tree.map(lambda kept: kept[:, source], cache)
    cache = serving.split_cache(cache)
    stops = jnp.asarray(stop_ids, jnp.int32)

    def draw(hidden, step):
        logits = partition.constrain(qwen_vl.logits(config, params, hidden), partition.ROWS)
        logps = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
        if sampler.temperature == 0:
            ids = jnp.argmax(logps, axis=-1).astype(jnp.int32)
            return ids, jnp.take_along_axis(logps, ids[:, None], axis=-1)[:, 0], jnp.zeros(rows, jnp.float32)
        scaled = restrict(logps / sampler.temperature, sampler.top_k, sampler.top_p)
        scaled = jax.nn.log_softmax(scaled, axis=-1)
        row_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, step)
        ids = jax.vmap(jax.random.categorical)(row_keys, scaled).astype(jnp.int32)
        pick = lambda table: jnp.take_along_axis(table, ids[:, None], axis=-1)[:, 0]  # noqa: E731
        return ids, pick(logps), pick(scaled)

    def cond(carry):
        step, done = carry[0], carry[1]
        return (step < new) & ~jnp.all(done)

    def body(carry):
        step, done, kept, hidden, cache, out_ids, out_logps, out_sampler = carry
        ids, logps, sampler_logps = draw(hidden, step)
        out_ids = out_ids.at[:, step].set(ids)
        out_logps = out_logps.at[:, step].set(logps)
        out_sampler = out_sampler.at[:, step].set(sampler_logps)
        kept = kept + ~done
        done = done | jnp.isin(ids, stops)
        hidden, cache = qwen_vl.decode_step(config, params, cache, ids, next_positions + step, lengths + step)
        return step + 1, done, kept, hidden, cache, out_ids, out_logps, out_sampler

    empty = jnp.zeros((rows, new), jnp.float32)
    init = (
        jnp.int32(0),
        ~active,
        jnp.zeros(rows, jnp.int32),
        hidden,
        cache,
        jnp.zeros((rows, new), jnp.int32),
        empty,
        empty,
    )
    _, _, kept, _, _, ids, logps, sampler_logps = jax.lax.while_loop(cond, body, init)
    return ids, logps, sampler_logps, kept


@dataclasses.dataclass(frozen=True)
class Engine:
    """Samples responses from a policy.

    Attributes:
      config: the model.
      sampler: how to sample.
      stop_ids: a response ends with the first of these (it is kept).
      dtype: compute dtype of the matmuls.
      mesh: over which rows, weights and cache are split; None: one device. Where it has devices of several processes,
        each process samples for its own requests, all call `generate` alike often or follow with `join`, and the row
        buckets count the rows of all.
    """

    config: QwenVLConfig
    sampler: SamplerConfig
    stop_ids: tuple[int, ...]
    dtype: str = "float32"
    mesh: Mesh | None = None

    def __post_init__(self) -> None:
        if self.mesh is not None:
            for rows in self.sampler.row_buckets:
                serving.check_rows(rows, self.mesh)

    def generate(self, params, prompts: Sequence[EncodedPrompt], seeds: np.ndarray) -> list[Sample]:
        """Samples one response per prompt.

        Args:
          params: the policy's parameters: on one device, or on the mesh as `sharding.param_shardings` splits them.
          prompts: any number; they are cut into batches of the row buckets.
          seeds: uint32 [n, 2], one PRNG key per prompt.

        Returns:
          one Sample per prompt, in order.
        """
        samples: dict[int, Sample] = {}
        self._rounds(params, prompts, seeds, samples)
        return [samples[i] for i in range(len(prompts))]

    def join(self, params) -> None:
        """Takes part in what other processes sample on the mesh, until all have come here; else returns at once."""
        while serving.processes(self.mesh) > 1 and self._rounds(params, [], np.zeros((0, 2), np.uint32), {}):
            pass

    def _rounds(self, params, prompts: Sequence[EncodedPrompt], seeds: np.ndarray, samples: dict[int, Sample]) -> int:
        """Samples in as many batches as the process with the most prompts needs; returns their number."""
        # Prompts of like length share a batch, so that a short prompt is not padded to a long one's bucket.
        order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i].ids), i))
        largest = self.sampler.row_buckets[-1] // serving.processes(self.mesh)
        (rounds,) = serving.most(self.mesh, -(-len(order) // largest))
        for start in range(0, rounds * largest, largest):
            chosen = order[start : start + largest]
            batch = self._batch(params, [prompts[i] for i in chosen], seeds[np.array(chosen, int)])
            samples |= dict(zip(chosen, batch))
        return rounds

    def _batch(self, params, prompts: list[EncodedPrompt], seeds: np.ndarray) -> list[Sample]:
        sampler, mesh = self.sampler, self.mesh
        length = max((len(p.ids) for p in prompts), default=1)
        patches = max((sum(layout.patch_slots(im, self.config.vision) for im in p.images) for p in prompts), default=0)
        rows, length, patches = serving.most(mesh, len(prompts), length, patches)
        every_row = bucket(rows * serving.processes(mesh), sampler.row_buckets, "row_buckets")
        rows = every_row // serving.processes(mesh)
        length = bucket(length, sampler.length_buckets, "length_buckets")
        patches = bucket(patches, sampler.patch_buckets, "patch_buckets") if patches else 0
        source, distinct, read = None, prompts, rows
        if sampler.share_prompts and mesh is None:
            own, distinct = distinct_prompts(prompts)
            read = min(rows, 1 << (len(distinct) - 1).bit_length())
            source = np.zeros(rows, np.int32)
            source[: len(prompts)] = own
        # Rows that are only there to fill the bucket hold one token and are done before they start.
        filler = layout.Example(np.zeros(1, np.int32), np.zeros(1, np.float32), (), {})
        examples = [prompt_example(p) for p in distinct] + [filler] * (read - len(distinct))
        batch = layout.lay_out_prompts(examples, self.config, length, patches)
        keys = np.zeros((rows, 2), np.uint32)
        keys[: len(prompts)] = seeds
        active = np.arange(rows) < len(prompts)
        if mesh is not None:
            batch, active, keys = serving.put_rows((batch, active, keys), mesh, every_row)
        out = _generate(
            params,
            batch,
            source,
            active,
            keys,
            config=self.config,
            sampler=sampler,
            stop_ids=self.stop_ids,
            dtype=self.dtype,
            mesh=mesh,
        )
        ids, logps, sampler_logps, kept = jax.device_get(out) if mesh is None else map(serving.own_rows, out)
        return [
            Sample(ids[i, :n], logps[i, :n], sampler_logps[i, :n], truncated=ids[i, n - 1] not in self.stop_ids)
            for i, n in enumerate(kept[: len(prompts)])
        ]


def distinct_prompts(prompts: Sequence[EncodedPrompt]) -> tuple[list[int], list[EncodedPrompt]]:
    """Returns for each prompt the index of its like among the different ones, and those."""
    place: dict[tuple, int] = {}
    distinct: list[EncodedPrompt] = []
    source = []
    for prompt in prompts:
        images = ((im.grid, im.frames, im.video, im.seconds_per_patch, im.patches.tobytes()) for im in prompt.images)
        key = (prompt.ids.tobytes(), *images)
        if key not in place:
            place[key] = len(distinct)
            distinct.append(prompt)
        source.append(place[key])
    return source, distinct


def prompt_example(prompt: EncodedPrompt) -> layout.Example:
    """A prompt as an Example without training targets."""
    return layout.Example(
        tokens=prompt.ids, loss_mask=np.zeros(len(prompt.ids), np.float32), images=prompt.images, extras={}
    )


def request_seed(*parts: int) -> np.ndarray:
    """A PRNG key (uint32 [2]) from integers such as (seed, update, episode, step): stable, order-sensitive."""
    return np.random.SeedSequence([p % (1 << 32) for p in parts]).generate_state(2)
