"""Packing a stream of examples into batches of rows, by token budget and patch budget, as a Grain transformation.

A batch is filled example by example. Each goes to the row where it leaves the least room for tokens (best fit). One
that fits nowhere is held back for the next batch, where it is placed first; when `lookahead` are held, the batch is
done. So no example waits longer than one batch, none is lost, and the stream of batches is a function of the stream
of examples alone.

Budgets of 8 tokens, two rows, lookahead 1, examples of 5 6 3 2 4 tokens:

    row 0: 5 3      row 1: 6 2      4 is held, and opens the next batch
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grain
import numpy as np
from absl import flags

from gui_owl_jax.agent.errors import ConfigError, DataError
from gui_owl_jax.models.config import QwenVLConfig
from gui_owl_jax.models.layout import Batch, Example, lay_out_rows, patch_slots, place_images


@dataclasses.dataclass(frozen=True)
class Budget:
    """The fixed shape of a batch.

    Attributes:
      rows: rows of the batch of one host.
      tokens: tokens of a row.
      patches: patches of a row; a multiple of merge_size ** 2.
      lookahead: how many examples may be held back before a batch is done; more fill better and cost time.
    """

    rows: int
    tokens: int
    patches: int
    lookahead: int = 8

    def __post_init__(self):
        for name, least in (("rows", 1), ("tokens", 2), ("patches", 0), ("lookahead", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"Budget.{name} is {getattr(self, name)}, must be at least {least}")


class RowFiller:
    """Fills the rows of one batch, best fit by tokens under the patch budget.

    Args:
      config: names the vision window, which decides how images share a row's patches.
      budget: the batch's shape.
    """

    def __init__(self, config: QwenVLConfig, budget: Budget):
        self.rows: list[list[Example]] = [[] for _ in range(budget.rows)]
        self._vision = config.vision
        self._budget = budget
        self._free = np.full(budget.rows, budget.tokens)
        self._counts: list[list[int]] = [[] for _ in range(budget.rows)]  # patches of the images in each row

    def place(self, example: Example) -> bool:
        """Puts the example into a row; returns whether there was room."""
        length = len(example.tokens)
        counts = [patch_slots(image, self._vision) for image in example.images]
        for row in np.argsort(self._free, kind="stable"):
            if self._free[row] < length:
                continue
            if place_images(self._counts[row] + counts, self._vision.window)[1] <= self._budget.patches:
                self._free[row] -= length
                self._counts[row] += counts
                self.rows[row].append(example)
                return True
        return False

    @property
    def empty(self) -> bool:
        """Whether nothing was placed yet."""
        return not any(self.rows)


def fill_rate(batch: Batch) -> tuple[float, float]:
    """Returns the shares of a batch's tokens and of its patches that are no padding."""
    patches = batch["patch_segment_ids"]
    return float(np.mean(batch["segment_ids"] > 0)), float(np.mean(patches > 0)) if patches.size else 0.0


def pack_batches(examples: Sequence[Example], config: QwenVLConfig, budget: Budget) -> Iterator[Batch]:
    """Packs a finite set of examples, in memory, into as many batches as it takes; each example is in one of them.

    Raises:
      DataError: an example exceeds a budget on its own.
    """
    return iter(PackedBatches(grain.MapDataset.source(examples), config, budget))  # type: ignore[arg-type]


class PackedBatches(grain.IterDataset):
    """Batches (`lay_out_rows`) packed from the examples of a map dataset, in its order.

    The iterator's state is the number of examples read and the indices of those held back. It can be restored with
    any number of workers, since the examples come in the same order from all of them.

    Args:
      examples: any Grain map dataset of `Example`s, finite or infinite.
      config: the model's configuration, for the layout.
      budget: the shape of a batch.
      workers: processes that make examples; 0 makes them in the calling process.
      threads: threads that read ahead within the calling process (only with 0 workers); 0 reads when needed.
    """

    def __init__(
        self,
        examples: grain.MapDataset,
        config: QwenVLConfig,
        budget: Budget,
        *,
        workers: int = 0,
        threads: int = 0,
    ):
        super().__init__()
        self._examples = examples
        self._config = config
        self._budget = budget
        self._workers = workers
        self._threads = threads

    def __iter__(self) -> PackedIterator:
        return PackedIterator(self._examples, self._read_from, self._config, self._budget)

    def _read_from(self, position: int) -> Iterator[Example | np.ndarray]:
        """Reads the examples from an index on; workers give them as `_to_bytes`."""
        if not (self._workers or self._threads):
            return (self._examples[i] for i in range(position, len(self._examples)))
        rest = self._examples[position:]
        if not self._workers:
            return iter(rest.to_iter_dataset(grain.ReadOptions(self._threads, 16 * self._threads)))
        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()  # Grain's workers read an absl flag; notebooks parse none
        one_thread = rest.map(_to_bytes).to_iter_dataset(grain.ReadOptions(1, 16))
        options = grain.MultiprocessingOptions(num_workers=self._workers, per_worker_buffer_size=16)
        return iter(one_thread.mp_prefetch(options))


def _to_bytes(example: Example) -> np.ndarray:
    """An example as one array: Grain moves arrays through shared memory, and anything else through a pipe.

    A worker that is told to end first waits until its pipe is empty, for half a minute at worst.
    """
    return np.frombuffer(pickle.dumps(example, protocol=pickle.HIGHEST_PROTOCOL), np.uint8)


class PackedIterator(grain.DatasetIterator):
    """The iterator of `PackedBatches`."""

    def __init__(
        self,
        examples: grain.MapDataset,
        read_from: Callable[[int], Iterator[Example | np.ndarray]],
        config: QwenVLConfig,
        budget: Budget,
    ):
        super().__init__()
        self._examples = examples
        self._read_from = read_from
        self._config = config
        self._budget = budget
        self._position = 0
        self._held: list[tuple[int, Example]] = []
        self._reader: Iterator[Example | np.ndarray] | None = None

    def __next__(self) -> Batch:
        filler = RowFiller(self._config, self._budget)
        self._held = [(index, example) for index, example in self._held if not filler.place(example)]
        while len(self._held) < self._budget.lookahead:
            example = self._read()
            if example is None:
                break
            if not filler.place(example):
                self._held.append((self._position - 1, example))
        if filler.empty:
            raise StopIteration
        return lay_out_rows(filler.rows, self._config, self._budget.tokens, self._budget.patches)

    def get_state(self) -> dict[str, Any]:
        """Returns {"position": examples read, "held": indices of those that wait for the next batch}; plain JSON."""
        return {"position": self._position, "held": [index for index, _ in self._held]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from a state; the next batch is the one that followed it."""
        self.close()
        self._closed = False
        self._position = state["position"]
        self._held = [(index, self._examples[index]) for index in state["held"]]

    def close(self) -> None:
        """Ends the workers; idempotent. A later call of next starts them again."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()  # type: ignore[attr-defined]

    def _read(self) -> Example | None:
        if self._reader is None:
            self._reader = self._read_from(self._position)
        example = next(self._reader, None)
        if isinstance(example, np.ndarray):
            example = pickle.loads(example.tobytes())
        if example is not None:
            self._check(example)
            self._position += 1
        return example

    def _check(self, example: Example) -> None:
        counts = [patch_slots(image, self._config.vision) for image in example.images]
        patches = place_images(counts, self._config.vision.window)[1]
        if len(example.tokens) > self._budget.tokens or patches > self._budget.patches:
            raise DataError(
                f"example {self._position} of the stream has {len(example.tokens)} tokens and {patches} patches, a row "
                f"holds {self._budget.tokens} and {self._budget.patches}: raise the budget or shorten the history"
            )


class JoinedBatches(grain.IterDataset):
    """Batches whose rows come from several packers: the first batch of each, one below the other, then the second."""

    def __init__(self, parts: Sequence[PackedBatches]):
        super().__init__()
        self._parts = tuple(parts)

    def __iter__(self) -> JoinedIterator:
        return JoinedIterator([iter(part) for part in self._parts])


class JoinedIterator(grain.DatasetIterator):
    """The iterator of `JoinedBatches`; it ends with the first of its parts."""

    def __init__(self, parts: Sequence[PackedIterator]):
        super().__init__()
        self._parts = tuple(parts)

    def __next__(self) -> Batch:
        batches = [next(part) for part in self._parts]
        return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}

    def get_state(self) -> dict[str, Any]:
        """Returns {"lanes": the state of each part}; plain JSON."""
        return {"lanes": [part.get_state() for part in self._parts]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from a state.

        Raises:
          DataError: it is that of another number of parts.
        """
        if len(state["lanes"]) != len(self._parts):
            raise DataError(f"the state has {len(state['lanes'])} lanes, the stream {len(self._parts)}")
        for part, own in zip(self._parts, state["lanes"]):
            part.set_state(own)

    def close(self) -> None:
        """Ends the workers of all parts; idempotent."""
        for part in self._parts:
            part.close()
