"""The pipeline on real sources: same stream for any workers, exact resume, shares of hosts."""

import json

import grain
import numpy as np
import orbax.checkpoint as ocp
import pytest

from data.examples import CachedExamples, StepExamples
from data.grounding import ClickExamples, ListingExamples
from data.packing import Budget, fill_rate
from data.pipeline import make_examples, make_pipeline
from data.store import ScreenSource, TrajectorySource, write_screens, write_trajectories
from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.models.layout import Example

BUDGET = Budget(rows=3, tokens=256, patches=256)


@pytest.fixture(scope="module")
def sources(tmp_path_factory, trajectories, screens, processor, context):
    folder = tmp_path_factory.mktemp("pipeline")
    write_trajectories(folder / "t", trajectories, 2)
    write_screens(folder / "s", screens, 2)
    screens = ScreenSource(folder / "s")
    return [
        StepExamples(TrajectorySource(folder / "t"), processor, context),
        ListingExamples(screens, processor, context),
        CachedExamples(ClickExamples(screens, processor, context)),
    ]


def take(pipeline, count):
    iterator = iter(pipeline)
    batches = [next(iterator) for _ in range(count)]
    state = iterator.get_state()
    iterator.close()
    return batches, state


def equal(a, b):
    return len(a) == len(b) and all(
        x.keys() == y.keys() and all((x[name] == y[name]).all() for name in x) for x, y in zip(a, b)
    )


@pytest.fixture(scope="module")
def reference(sources, config):
    return take(make_pipeline(sources, config, BUDGET, weights=[0.5, 0.3, 0.2], seed=4), 12)


HOW = [{"workers": 1}, {"workers": 2, "prefetch": 1}, {"threads": 2}, {"prefetch": 2}]


@pytest.mark.parametrize("how", HOW, ids=str)
def test_same_stream_and_resume_for_any_workers(sources, config, reference, how):
    batches, _ = reference
    pipeline = make_pipeline(sources, config, BUDGET, weights=[0.5, 0.3, 0.2], seed=4, **how)
    head, state = take(pipeline, 5)
    assert equal(head, batches[:5])
    assert state == json.loads(json.dumps(state))
    iterator = iter(make_pipeline(sources, config, BUDGET, weights=[0.5, 0.3, 0.2], seed=4))
    iterator.set_state(state)  # written with workers, read without
    assert equal([next(iterator) for _ in range(7)], batches[5:])
    if "threads" in how:
        other = iter(pipeline)  # and with them
        other.set_state(state)
        assert equal([next(other) for _ in range(2)], batches[5:7])
        other.close()


def test_workers_continue_from_a_state(sources, config, reference):
    batches, state = reference
    iterator = iter(make_pipeline(sources, config, BUDGET, weights=[0.5, 0.3, 0.2], seed=4))
    iterator.set_state(state)
    expected = [next(iterator) for _ in range(3)]
    workers = iter(make_pipeline(sources, config, BUDGET, weights=[0.5, 0.3, 0.2], seed=4, workers=2))
    workers.set_state(state)
    assert equal([next(workers) for _ in range(3)], expected)
    workers.close()


def test_orbax_keeps_the_state(tmp_path, sources, config, reference):
    batches, _ = reference
    pipeline = make_pipeline(sources, config, BUDGET, weights=[0.5, 0.3, 0.2], seed=4, prefetch=2)
    iterator, again = iter(pipeline), iter(pipeline)
    for _ in range(5):
        next(iterator)
    with ocp.CheckpointManager(tmp_path / "ck") as manager:
        manager.save(5, args=ocp.args.Composite(data=grain.checkpoint.CheckpointSave(iterator)))
        manager.wait_until_finished()
        manager.restore(5, args=ocp.args.Composite(data=grain.checkpoint.CheckpointRestore(again)))
    assert equal([next(again) for _ in range(7)], batches[5:])
    iterator.close()
    again.close()


def test_another_seed_is_another_stream(sources, config, reference):
    other, _ = take(make_pipeline(sources, config, BUDGET, weights=[0.5, 0.3, 0.2], seed=5), 2)
    assert not equal(other, reference[0][:2])


def numbered(start, count):
    return [Example(np.array([start + i, 0], np.int32), np.array([0, 1], np.float32), extras={}) for i in range(count)]


def first_tokens(dataset, count):
    return [int(dataset[i].tokens[0]) for i in range(count)]


@pytest.mark.parametrize("hosts", [2, 3])
def test_hosts_together_see_the_whole(hosts):
    sources = [numbered(0, 10), numbered(100, 7)]
    one = make_examples(sources, weights=[0.7, 0.3], seed=1)
    shares = [make_examples(sources, weights=[0.7, 0.3], seed=1, host=h, hosts=hosts) for h in range(hosts)]
    whole = first_tokens(one, 60)
    parts = [first_tokens(share, 60 // hosts) for share in shares]
    assert [token for together in zip(*parts) for token in together] == whole
    finite = [make_examples(sources, repeat=False, seed=1, host=h, hosts=hosts) for h in range(hosts)]
    seen = [token for share in finite for token in first_tokens(share, len(share))]
    assert sorted(seen) == [*range(10), *range(100, 107)]


@pytest.mark.parametrize("hosts", [2, 4])
def test_batches_depend_on_lanes_and_not_on_hosts(sources, config, hosts):
    """Four lanes on one host, on two and on four: the same rows in the same order; resume is exact."""

    def batches(hosts: int, host: int):
        budget = Budget(rows=4 // hosts, tokens=256, patches=256)
        return make_pipeline(sources, config, budget, seed=4, host=host, hosts=hosts, lanes=4)

    whole, _ = take(batches(1, 0), 6)
    shares = [take(batches(hosts, host), 6)[0] for host in range(hosts)]
    together = [{name: np.concatenate([b[name] for b in parts]) for name in parts[0]} for parts in zip(*shares)]
    assert equal(whole, together) and whole[0]["tokens"].shape == (4, 256)
    _, state = take(batches(1, 0), 2)
    iterator = iter(batches(1, 0))
    iterator.set_state(json.loads(json.dumps(state)))
    assert equal([next(iterator) for _ in range(4)], whole[2:])


def test_epochs_are_complete_and_shuffled_anew():
    stream = make_examples([numbered(0, 10)], seed=1)
    epochs = [first_tokens(stream[10 * e :], 10) for e in range(3)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] and epochs[0] != list(range(10))
    assert first_tokens(make_examples([numbered(0, 10)], shuffle=False), 20) == [*range(10), *range(10)]


def test_every_host_sees_every_source():
    sources = [numbered(0, 50), numbered(100, 50)]
    for host in range(2):
        seen = first_tokens(make_examples(sources, weights=[0.5, 0.5], host=host, hosts=2), 500)
        assert 200 < sum(token >= 100 for token in seen) < 300


@pytest.mark.parametrize("shuffle", [True, False])
def test_weights(shuffle):
    sources = [numbered(0, 50), numbered(100, 4)]
    mixed = first_tokens(make_examples(sources, weights=[1, 3], shuffle=shuffle), 2000)
    assert sum(token >= 100 for token in mixed[:1000]) == 750
    assert [mixed.count(100 + i) for i in range(4)] == [375] * 4
    assert {mixed.count(i) for i in range(50)} == {10}
    natural = first_tokens(make_examples(sources, shuffle=shuffle), 540)
    assert {natural.count(token) for token in set(natural)} == {10}
    if not shuffle:
        assert [token for token in natural if token < 100] == 10 * list(range(50))


def test_bad_arguments_are_named(config):
    for arguments, complaint in [
        (dict(sources=[]), "sources"),
        (dict(sources=[numbered(0, 2), []]), r"\[2, 0\]"),
        (dict(sources=[numbered(0, 2)], weights=[0.5, 0.5]), "weights"),
        (dict(sources=[numbered(0, 2)] * 2, weights=[0.5, 0.0]), "weights"),
        (dict(sources=[numbered(0, 2)] * 2, weights=[0.5, 0.5], repeat=False), "repeat"),
        (dict(sources=[numbered(0, 2)], host=2, hosts=2), "host is 2"),
        (dict(sources=[numbered(0, 2)], lanes=3, hosts=2), "3 lanes"),
        (dict(sources=[numbered(0, 2)], lanes=2), "3 rows"),
        (dict(sources=[numbered(0, 9)], lanes=3, repeat=False), "repeat"),
    ]:
        with pytest.raises(ConfigError, match=complaint):
            make_pipeline(arguments.pop("sources"), config, BUDGET, **arguments)


def test_rows_are_well_filled(sources, config, reference):
    tokens, _ = np.mean([fill_rate(batch) for batch in reference[0]], axis=0)
    assert tokens > 0.8
