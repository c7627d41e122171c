"""The input pipeline: sources of examples -> mix -> shuffle and repeat -> this host's share -> packed batches.

    pipeline = make_pipeline([listing, clicks], model_config, Budget(rows=16, tokens=320, patches=256),
                             weights=[0.6, 0.4], seed=0)
    iterator = iter(pipeline)
    batch = next(iterator)
    state = iterator.get_state()      # plain JSON; set_state continues exactly, whatever the number of workers

A source is any sequence of `Example`s (`data.examples`, `data.grounding`, a list). It must give the same example for
the same index each time.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Sequence

import grain
import numpy as np

from data.packing import Budget, JoinedBatches, PackedBatches
from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.models.config import QwenVLConfig
from gui_owl_jax.models.layout import Example

_BLOCK = 1000  # with weights, shares are exact over so many examples


class MixedExamples(grain.MapDataset):
    """Sources mixed into one stream, by index: shares are exact in every block, places within a block are random.

    The stream runs through blocks of sum(counts) examples, counts[s] of them from source s. Each block has its own
    random order. The k-th example taken from a source is number k % len(source) of its epoch k // len(source), and
    each epoch has its own random order. Counts of (2, 1), sources of a b and x y:

        block 0: a x b    block 1: y b a    block 2: a b y   ...

    (Grain's own shuffle takes milliseconds an example on small sources, and its mix places sources at regular
    distances, so that a host that takes every n-th example may see one source only.)

    Args:
      sources: random access to examples.
      counts: how many examples of each source a block has.
      seed: of all orders.
      shuffle: whether blocks and epochs are in random order; without, sources keep theirs and are spread evenly.
      repeat: whether the stream is infinite; if not, it is one block long.
    """

    def __init__(
        self, sources: Sequence[Sequence[Example]], counts: Sequence[int], *, seed: int, shuffle: bool, repeat: bool
    ):
        super().__init__()
        self._sources = tuple(sources)
        self._counts = tuple(counts)
        self._seed = seed
        self._shuffle = shuffle
        self._length = sys.maxsize if repeat else sum(counts)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index):
        if isinstance(index, slice):
            return self.slice(index)
        block, place = divmod(index, sum(self._counts))
        source, rank = _block_order(self._counts, self._seed, block if self._shuffle else None)
        chosen = int(source[place])
        epoch, row = divmod(block * self._counts[chosen] + int(rank[place]), len(self._sources[chosen]))
        if self._shuffle:
            row = int(_epoch_order(len(self._sources[chosen]), self._seed, chosen, epoch)[row])
        return self._sources[chosen][row]


@functools.lru_cache(maxsize=4)
def _block_order(counts: tuple[int, ...], seed: int, block: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns the source of each place of a block, and its rank among the places of that source.

    Counts (2, 1) in the order a x b give sources [0 1 0] and ranks [0 0 1]. Block None is the even order.
    """
    source = np.repeat(np.arange(len(counts)), counts)
    rank = np.concatenate([np.arange(count) for count in counts])
    if block is None:
        order = np.argsort((rank + 0.5) / np.asarray(counts)[source], kind="stable")
        return source[order], rank[order]
    source = np.random.default_rng([seed, 0, block]).permutation(source)
    rank[np.argsort(source, kind="stable")] = rank.copy()
    return source, rank


@functools.lru_cache(maxsize=16)
def _epoch_order(length: int, seed: int, source: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, 1, source, epoch]).permutation(length)


def make_examples(
    sources: Sequence[Sequence[Example]],
    *,
    weights: Sequence[float] | None = None,
    seed: int = 0,
    shuffle: bool = True,
    repeat: bool = True,
    host: int = 0,
    hosts: int = 1,
) -> grain.MapDataset:
    """Returns one host's stream of examples, by index.

    Hosts take every `hosts`-th example of the same stream, so together they see what one host would see.

    Args:
      sources: random access to examples, not empty.
      weights: share of each source in the stream. None: as their lengths; then every example comes once per epoch.
      seed: of the shuffles, not negative.
      shuffle: whether to shuffle anew in each epoch.
      repeat: whether the stream is infinite; without, it ends after one epoch.
      host: which share to return.
      hosts: number of shares.

    Raises:
      ConfigError: no sources, an empty source, weights that do not fit, or a host that does not exist.
    """
    lengths = [len(source) for source in sources]
    if not sources or not all(lengths):
        raise ConfigError(f"sources have lengths {lengths}; there must be one, and each needs an example")
    if not 0 <= host < hosts:
        raise ConfigError(f"host is {host} of {hosts} hosts")
    if weights is None:
        counts = lengths
    elif len(weights) != len(sources) or min(weights) <= 0:
        raise ConfigError(f"weights are {list(weights)}, must be {len(sources)} numbers above 0")
    elif not repeat:
        raise ConfigError("weights need repeat: without it every example comes once")
    else:
        counts = [max(1, round(_BLOCK * weight / sum(weights))) for weight in weights]
    stream = MixedExamples(sources, counts, seed=seed, shuffle=shuffle, repeat=repeat)
    return stream[host::hosts] if hosts > 1 else stream


def make_pipeline(
    sources: Sequence[Sequence[Example]],
    config: QwenVLConfig,
    budget: Budget,
    *,
    weights: Sequence[float] | None = None,
    seed: int = 0,
    shuffle: bool = True,
    repeat: bool = True,
    host: int = 0,
    hosts: int = 1,
    lanes: int = 0,
    workers: int = 0,
    threads: int = 0,
    prefetch: int = 0,
) -> grain.IterDataset:
    """Returns one host's stream of batches (`gui_owl_jax.models.layout.lay_out_rows`).

    The stream is the same for any number of workers, threads and prefetched batches. Where lanes or hosts go together
    it must be infinite (`repeat`): finite shares may pack into different numbers of batches.

    The stream of examples is dealt to lanes, each of which packs its share of the rows on its own; a host has several
    consecutive ones. So the batches of all hosts, one below the other, depend on the lanes and not on the hosts:

        4 lanes, 1 host    0 1 2 3        2 hosts    0 1 | 2 3        4 hosts    0 | 1 | 2 | 3

    Args:
      sources, weights, seed, shuffle, repeat: see `make_examples`.
      config: the model's configuration.
      budget: the shape of the batch of one host.
      host: which host's batches to return.
      hosts: number of hosts.
      lanes: number of lanes of all hosts together; 0: one per host.
      workers: processes per lane that make examples.
      threads: threads per lane that make examples ahead, with 0 workers.
      prefetch: batches that a thread keeps ready ahead of the consumer.

    Raises:
      ConfigError: see `make_examples`; or the hosts do not divide the lanes, or a host's lanes do not divide its rows.
    """
    lanes = lanes or hosts
    own = lanes // hosts
    if lanes % hosts or budget.rows % own:
        raise ConfigError(f"{lanes} lanes cannot be shared by {hosts} hosts with {budget.rows} rows each")
    if not 0 <= host < hosts:
        raise ConfigError(f"host is {host} of {hosts} hosts")
    if own > 1 and not repeat:
        raise ConfigError("several lanes need repeat: finite shares may pack into different numbers of batches")
    budget = dataclasses.replace(budget, rows=budget.rows // own)
    packed = [
        PackedBatches(
            make_examples(sources, weights=weights, seed=seed, shuffle=shuffle, repeat=repeat, host=lane, hosts=lanes),
            config,
            budget,
            workers=workers,
            threads=threads,
        )
        for lane in range(host * own, (host + 1) * own)
    ]
    batches: grain.IterDataset = JoinedBatches(
        packed
    )  # of one lane too: states then look alike for any number of hosts
    if prefetch:
        batches = grain.experimental.ThreadPrefetchIterDataset(batches, prefetch_buffer_size=prefetch)
    return batches
