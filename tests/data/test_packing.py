"""Packing: budgets are kept, nothing is lost, the state is exact."""

import dataclasses

import grain
import numpy as np
import pytest

from data.packing import Budget, PackedBatches, RowFiller, fill_rate, pack_batches
from gui_owl_jax.agent.errors import ConfigError, DataError
from gui_owl_jax.models.layout import Example, ImagePatches


def example(length: int, grids=(), number: int = 0, config=None) -> Example:
    """`length` tokens, images first; the extra "number" tells examples apart."""
    tokens = []
    for height, width in grids:
        pads = [config.image_token_id] * (height * width // 4)
        tokens += [config.vision_start_token_id, *pads, config.vision_end_token_id]
    tokens = np.array(tokens + [7] * (length - len(tokens)), np.int32)
    images = tuple(ImagePatches(np.full((h * w, 768), number % 255, np.uint8), (h, w)) for h, w in grids)
    mask = np.zeros(length, np.float32)
    mask[-1] = 1
    return Example(tokens, mask, images, {"number": np.full(length, number, np.float32)})


def random_examples(config, count=200, seed=0) -> list[Example]:
    rng = np.random.default_rng(seed)
    grids = [(2, 2), (4, 6), (6, 10), (8, 8)]
    return [
        example(int(rng.integers(60, 90)), [grids[i] for i in rng.integers(0, 4, rng.integers(0, 3))], number, config)
        for number in range(count)
    ]


def numbers(batch) -> list[int]:
    """The numbers of the examples in a batch, row by row."""
    found = []
    for row, segments in zip(batch["number"], batch["segment_ids"]):
        found += [int(row[segments == segment][0]) for segment in range(1, segments.max() + 1)]
    return found


def test_worked_example(config):
    lengths = [5, 6, 3, 2, 4]
    filler = RowFiller(config, Budget(rows=2, tokens=8, patches=0))
    assert [filler.place(example(length)) for length in lengths] == [True, True, True, True, False]
    assert [[len(e.tokens) for e in row] for row in filler.rows] == [[5, 3], [6, 2]]
    batches = list(pack_batches([example(n, number=i) for i, n in enumerate(lengths)], config, Budget(2, 8, 0, 1)))
    assert [numbers(batch) for batch in batches] == [[0, 2, 1, 3], [4]]


@pytest.mark.parametrize("window", [0, 64])
def test_every_example_comes_once_within_budgets(config, window):
    config = dataclasses.replace(config, vision=dataclasses.replace(config.vision, window=window))
    examples = random_examples(config)
    budget = Budget(rows=4, tokens=256, patches=192)
    batches = list(pack_batches(examples, config, budget))
    assert sorted(sum(map(numbers, batches), [])) == list(range(200))
    for batch in batches:
        assert batch["tokens"].shape == (4, 256) and batch["patches"].shape == (4, 192, 768)
        for row in range(4):
            for number in numbers({name: array[row : row + 1] for name, array in batch.items()}):
                original = examples[number]
                where = (batch["number"][row] == number) & (batch["segment_ids"][row] > 0)
                assert (batch["tokens"][row, where] == original.tokens).all()
                assert (batch["loss_mask"][row, where] == original.loss_mask).all()
                fed = batch["visual_index"][row, where & (batch["visual_index"][row] >= 0)]
                assert len(fed) * 4 == original.patch_count
                for index in fed:
                    assert (batch["patches"][row, 4 * index : 4 * index + 4] == number % 255).all()


def test_no_example_waits_longer_than_one_batch(config):
    budget = Budget(rows=4, tokens=256, patches=192)
    batches = [numbers(batch) for batch in pack_batches(random_examples(config), config, budget)]
    seen: set[int] = set()
    for batch, following in zip(batches, batches[1:]):
        seen |= set(batch)
        skipped = set(range(max(seen))) - seen
        assert len(skipped) <= budget.lookahead
        assert skipped <= set(following)


def test_lookahead_fills_better(config):
    examples = random_examples(config, 400)
    rates = []
    for lookahead in (1, 4, 32):
        batches = list(pack_batches(examples, config, Budget(4, 256, 240, lookahead)))[:-2]
        rates.append(np.mean([fill_rate(batch) for batch in batches], axis=0)[0])
    assert rates[0] < rates[1] <= rates[2] and rates[2] > 0.85, rates


def test_state_continues_exactly_from_every_batch(config):
    dataset = grain.MapDataset.source(random_examples(config)).seed(3).shuffle().repeat(2)
    pipeline = PackedBatches(dataset, config, Budget(3, 256, 192))
    iterator = iter(pipeline)
    states, batches = [], []
    while True:
        states.append(iterator.get_state())
        try:
            batches.append(next(iterator))
        except StopIteration:
            break
    assert len(batches) > 20 and any(state["held"] for state in states)
    resumed = iter(pipeline)
    for i in np.random.default_rng(0).permutation(len(batches)):
        resumed.set_state(states[i])
        assert resumed.get_state() == states[i]
        for expected in batches[i : i + 2]:
            found = next(resumed)
            assert all((found[name] == expected[name]).all() for name in expected)
    resumed.set_state(states[-1])
    with pytest.raises(StopIteration):
        next(resumed)


def test_an_example_that_no_row_can_hold_is_named(config):
    small = example(10, number=0)
    for wrong in (example(257), example(80, [(16, 16)], config=config)):
        batches = pack_batches([small, wrong], config, Budget(1, 256, 192, 1))
        with pytest.raises(DataError, match="example 1 of the stream .*raise the budget"):
            list(batches)


def test_budgets_are_checked():
    for name in ("rows", "tokens", "lookahead"):
        with pytest.raises(ConfigError, match=name):
            Budget(**{"rows": 1, "tokens": 8, "patches": 0, name: 0})
