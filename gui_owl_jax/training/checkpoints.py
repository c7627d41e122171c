"""Checkpoints of a whole run on Orbax: train state, data iterator, PRNG key, and what else the loop carries.

One checkpoint is the folder `<folder>/<step>` with the items `params`, `optimizer` (step and optimizer state), `data`
(one file per process), `arrays` (the arrays of `extra`) and `meta` (the rest of `extra`, the key, and one checksum per
array). Orbax writes under a temporary name and commits at the end, so a killed writer leaves the older ones alone.
It stores no checksums of its own: a flipped bit would come back as a wrong weight, hence ours.
"""

from __future__ import annotations

import dataclasses
import json
import os
import zlib
from collections.abc import Mapping
from typing import Any, Protocol

import grain.checkpoint
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils

from gui_owl_jax.agent.errors import CheckpointError
from gui_owl_jax.training.optimizer import path_name
from gui_owl_jax.training.state import TrainState


class DataIterator(Protocol):
    """What is asked of a data iterator; Grain's iterators are ones."""

    def get_state(self) -> Any:
        """Gives the position as bytes, or as something that JSON can hold."""

    def set_state(self, state: Any) -> None:
        """Moves to a position that `get_state` gave."""


@dataclasses.dataclass(frozen=True, eq=False)
class Restored:
    """What a checkpoint held.

    Attributes:
      step: its step.
      state: the train state, on the devices and with the shardings asked for.
      key: the PRNG key (None when none was saved).
      extra: the mapping given to `save`; arrays come back as numpy arrays, tuples as lists.
    """

    step: int
    state: TrainState
    key: jax.Array | None
    extra: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run in one folder, the newest `keep` of them."""

    def __init__(self, folder: str | os.PathLike[str], keep: int = 3, *, asynchronous: bool = False):
        """Names the folder; nothing is touched before the first `save`, so that reading a running run is safe.

        Args:
          folder: where the checkpoints lie, local or in a bucket.
          keep: how many to keep, at least 1.
          asynchronous: return from `save` once the arrays are copied and write in the background.
        """
        if keep < 1:
            raise CheckpointError(f"checkpoints in {folder}: keep must be at least 1, got {keep}")
        self.folder = epath.Path(folder)
        if "://" not in str(folder):  # a bucket has no other form
            self.folder = self.folder.absolute()
        self._keep, self._asynchronous = keep, asynchronous
        self._writer: ocp.CheckpointManager | None = None
        self._reader: ocp.CheckpointManager | None = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits for writes under way and frees the threads."""
        for manager in (self._writer, self._reader):
            if manager is not None:
                manager.close()
        self._writer = self._reader = None

    def wait(self) -> None:
        """Waits until all that was saved is on disk."""
        if self._writer is not None:
            self._writer.wait_until_finished()

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps of the committed checkpoints, ascending."""
        self.wait()
        return tuple(sorted(ocp.utils.checkpoint_steps(self.folder))) if self.folder.exists() else ()

    @property
    def latest_step(self) -> int | None:
        """The newest committed step, None when there is none."""
        return max(self.steps, default=None)

    def path(self, step: int) -> epath.Path:
        """The folder of one checkpoint."""
        return self.folder / str(step)

    def save(
        self,
        step: int,
        state: TrainState,
        data_iterator: DataIterator | None = None,
        extra: Mapping[str, Any] | None = None,
        key: jax.Array | None = None,
    ) -> None:
        """Writes one checkpoint; all processes call this together.

        Args:
          step: its number, larger than those already there.
          state: the train state.
          data_iterator: the position of this process in its data; None when nothing is read.
          extra: names to numpy or jax arrays, or to what JSON can hold (RL state, counters).
          key: the PRNG key of the loop.

        Raises:
          CheckpointError: when the step is not newer than the latest, or `extra` holds something JSON cannot.
        """
        latest = self.latest_step
        if latest is not None and step <= latest:
            raise CheckpointError(
                f"{self.path(step)}: step {step} is not after the latest checkpoint, step {latest}; "
                f"call truncate_after to train on from an older one"
            )
        extra = dict(extra or {})
        kinds = (np.ndarray, np.generic, jax.Array)
        arrays = {name: np.asarray(value) for name, value in extra.items() if isinstance(value, kinds)}
        params, optimizer = _flatten(state.params), _flatten({"step": state.step, "opt_state": state.opt_state})
        meta = {
            "step": step,
            "extra": {name: value for name, value in extra.items() if name not in arrays},
            "key": None if key is None else _key_to_json(key),
            "params": _describe(params),
            "optimizer": _describe(optimizer),
            "arrays": _describe(arrays),
            "data": data_iterator is not None,
        }
        try:
            sealed = _seal(meta)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{self.path(step)}: extra holds what JSON cannot: {error}") from error
        items: dict[str, Any] = {
            "params": ocp.args.PyTreeSave(params),
            "optimizer": ocp.args.PyTreeSave(optimizer),
            "meta": ocp.args.JsonSave(sealed),
        }
        if arrays:
            items["arrays"] = ocp.args.PyTreeSave(arrays)
        if data_iterator is not None:
            items["data"] = grain.checkpoint.CheckpointSave(_SealedIterator(data_iterator))
        self._open_writer().save(step, args=ocp.args.Composite(**items), force=True)

    def restore(
        self, step: int | None, abstract_state: TrainState, data_iterator: DataIterator | None = None
    ) -> Restored:
        """Reads one checkpoint, bit for bit; all processes call this together.

        Args:
          step: which one; None takes the newest.
          abstract_state: a TrainState of ShapeDtypeStructs with the shardings wanted (`state.abstract_state`); the mesh
            may differ from the one that saved.
          data_iterator: moved to the saved position, when all else has been read.

        Raises:
          CheckpointError: when it is missing, damaged, or does not fit; names its path and the last good step.
        """
        step = self._existing(step)
        try:
            return self._read(step, abstract_state, data_iterator)
        except _Misfit as error:
            raise CheckpointError(f"{self.path(step)} {error}") from error
        except Exception as error:  # damage shows as whatever the reader of the hit file raises
            good = self._last_good(step, abstract_state)
            raise CheckpointError(f"{self.path(step)} is damaged: {_short(error)}. {good}") from error

    def restore_params(self, abstract_params: Any, step: int | None = None) -> Any:
        """Reads the parameters alone (to evaluate, to export, to start the next stage).

        Args:
          abstract_params: ShapeDtypeStructs; leaves without a sharding come to the first device.
          step: which checkpoint; None takes the newest.

        Raises:
          CheckpointError: as `restore` does.
        """
        step = self._existing(step)
        try:
            return self._read_tree(step, "params", self._read_meta(step)["params"], abstract_params)
        except _Misfit as error:
            raise CheckpointError(f"{self.path(step)} {error}") from error
        except Exception as error:
            raise CheckpointError(f"{self.path(step)} is damaged: {_short(error)}. {self._others(step)}") from error

    def truncate_after(self, step: int) -> None:
        """Deletes the checkpoints after `step`, so that a run resumed from there can save again."""
        for later in self.steps:
            if later > step:
                self._open_writer().delete(later)

    def _open_writer(self) -> ocp.CheckpointManager:
        """Creates the folder and clears what killed writers left in it."""
        if self._writer is None:
            self._writer = _open_manager(
                self.folder,
                max_to_keep=self._keep,
                enable_async_checkpointing=self._asynchronous,
                cleanup_tmp_directories=True,
            )
        return self._writer

    def _load(self, step: int, **items: Any) -> Any:
        if self._reader is None:
            self._reader = _open_manager(self.folder, create=False, enable_async_checkpointing=False)
        return self._reader.restore(step, args=ocp.args.Composite(**items))

    def _existing(self, step: int | None) -> int:
        steps = self.steps
        if not steps:
            raise CheckpointError(f"{self.folder} has no checkpoint")
        if step is None:
            return steps[-1]
        if step not in steps:
            raise CheckpointError(f"{self.path(step)} is missing. {self._others(step)}")
        return step

    def _others(self, step: int) -> str:
        return f"Checkpoints there: {[other for other in self.steps if other != step] or 'none'}"

    def _last_good(self, step: int, abstract_state: TrainState) -> str:
        """Reads the older checkpoints, newest first, until one is whole."""
        for older in sorted((other for other in self.steps if other < step), reverse=True):
            try:
                self._read(older, abstract_state, None)
            except Exception:
                continue
            return f"The last good checkpoint is step {older} ({self.path(older)})"
        return "There is no older checkpoint that is good"

    def _read_meta(self, step: int) -> dict[str, Any]:
        return _unseal(self._load(step, meta=ocp.args.JsonRestore()).meta)

    def _read(self, step: int, abstract_state: TrainState, data_iterator: DataIterator | None) -> Restored:
        meta = self._read_meta(step)
        if data_iterator is not None and not meta["data"]:
            raise _Misfit("was saved without a data iterator, and one is to be restored")
        rest = {"step": abstract_state.step, "opt_state": abstract_state.opt_state}
        params = self._read_tree(step, "params", meta["params"], abstract_state.params)
        rest = self._read_tree(step, "optimizer", meta["optimizer"], rest)
        extra = dict(meta["extra"])
        if meta["arrays"]:
            shapes = {name: np.empty(spec["shape"], spec["dtype"]) for name, spec in meta["arrays"].items()}
            extra |= self._read_tree(step, "arrays", meta["arrays"], shapes)
        if data_iterator is not None:
            self._move(step, data_iterator)
        key = None if meta["key"] is None else _key_from_json(meta["key"])
        return Restored(step, TrainState(rest["step"], params, rest["opt_state"]), key, extra)

    def _move(self, step: int, data_iterator: DataIterator) -> None:
        """Moves this process's data to the saved position, also where another number of processes saved it.

        A position is then {"lanes": [...]}, and the lanes of all processes, in their order, are dealt anew. Two
        processes with lanes a b | c d, read by one: a b c d; by four: a | b | c | d.
        """
        folder, index, count = self.path(step) / "data", jax.process_index(), jax.process_count()
        if (folder / f"process_{index}-of-{count}.json").exists():
            self._load(step, data=grain.checkpoint.CheckpointRestore(_SealedIterator(data_iterator)))
            return
        found = sorted(folder.glob("process_*-of-*.json"), key=lambda path: int(path.name.split("_")[1].split("-")[0]))
        saved = [_unseal(json.loads(path.read_text())).get("json") for path in found]
        if not found or len(found) != int(found[0].stem.rsplit("-", 1)[1]):
            raise ValueError(f"the data positions of some processes are missing; there are {[p.name for p in found]}")
        if not all(isinstance(state, dict) and "lanes" in state for state in saved):
            raise _Misfit(f"holds the data positions of {len(found)} processes, which {count} cannot take over")
        lanes = [lane for state in saved for lane in state["lanes"]]
        if len(lanes) % count:
            raise _Misfit(
                f"holds the positions of {len(lanes)} lanes, which {count} processes cannot share evenly"
            )
        share = len(lanes) // count
        data_iterator.set_state({"lanes": lanes[index * share : (index + 1) * share]})

    def _read_tree(self, step: int, item: str, saved: Mapping[str, Any], abstract: Any) -> Any:
        wanted = _flatten(abstract)
        absent, surplus = sorted(set(wanted) - set(saved)), sorted(set(saved) - set(wanted))
        if absent or surplus:
            raise _Misfit(f"holds other {item}: it lacks {absent or 'nothing'} and has {surplus or 'nothing'} besides")
        for name, leaf in wanted.items():
            shape, dtype = tuple(saved[name]["shape"]), saved[name]["dtype"]
            if shape != leaf.shape or dtype != str(leaf.dtype):
                raise _Misfit(f"holds {name} as {dtype}{shape}, wanted {leaf.dtype}{leaf.shape}")
        first = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        places = {name: getattr(leaf, "sharding", None) or first for name, leaf in wanted.items()}
        how = ocp.checkpoint_utils.construct_restore_args(wanted, places)
        read = self._load(step, **{item: ocp.args.PyTreeRestore(wanted, restore_args=how)})[item]
        for name, total in _checksums(read).items():
            if total != saved[name]["checksum"]:
                raise ValueError(f"the checksum of {name} does not agree")
        return jax.tree.unflatten(jax.tree.structure(abstract), [read[name] for name in wanted])


def _open_manager(folder: epath.Path, **options: Any) -> ocp.CheckpointManager:
    # By default the replicas of an array share the writing: each slices its part out, with a program compiled for every
    # shape, which for small arrays costs far more than it saves.
    arrays = ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=2**20)
    types = ocp.type_handlers.create_type_handler_registry(
        (jax.Array, arrays), (np.ndarray, ocp.type_handlers.NumpyHandler())
    )
    trees = {
        item: ocp.PyTreeCheckpointHandler(type_handler_registry=types) for item in ("params", "optimizer", "arrays")
    }
    handlers = trees | {"meta": ocp.JsonCheckpointHandler(), "data": grain.checkpoint.CheckpointHandler()}
    return ocp.CheckpointManager(folder, options=ocp.CheckpointManagerOptions(**options), item_handlers=handlers)


class _Misfit(Exception):
    """The checkpoint is whole but holds something else than was asked for."""


class _SealedIterator:
    """Passes the state of an iterator through Grain's handler with a checksum."""

    def __init__(self, iterator: DataIterator):
        self._iterator = iterator

    def get_state(self) -> bytes:
        state = self._iterator.get_state()
        return json.dumps(_seal({"bytes": state.decode()} if isinstance(state, bytes) else {"json": state})).encode()

    def set_state(self, sealed: bytes) -> None:
        state = _unseal(json.loads(sealed))
        self._iterator.set_state(state["bytes"].encode() if "bytes" in state else state["json"])

    def start_prefetch(self) -> None:
        getattr(self._iterator, "start_prefetch", lambda: None)()


def _flatten(tree: Any) -> dict[str, Any]:
    """Gives {"text.layers.q.kernel": leaf} in the order of the tree's leaves."""
    return {path_name(path).replace("/", "."): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _describe(leaves: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    totals = _checksums(leaves)
    return {
        name: {"shape": list(leaf.shape), "dtype": str(leaf.dtype), "checksum": totals[name]}
        for name, leaf in leaves.items()
    }


def _checksums(leaves: Mapping[str, Any]) -> dict[str, int]:
    """Adds the words of each array modulo 2^32: a sum that does not depend on how the array is sharded."""
    totals = np.array([_word_sum(leaf) for leaf in leaves.values()], np.uint32)
    if jax.process_count() > 1:
        totals = multihost_utils.process_allgather(totals).sum(axis=0, dtype=np.uint32)
    return dict(zip(leaves, totals.tolist()))


def _word_sum(leaf: jax.Array | np.ndarray) -> np.uint32:
    """This process's part of the sum: of copies, the first one counts."""
    if isinstance(leaf, jax.Array):
        parts = [np.asarray(shard.data) for shard in leaf.addressable_shards if shard.replica_id == 0]
    else:
        parts = [leaf] if jax.process_index() == 0 else []
    word = {1: np.uint8, 2: np.uint16}.get(leaf.dtype.itemsize, np.uint32)
    totals = [np.ascontiguousarray(part).ravel().view(word).sum(dtype=np.uint32) for part in parts]
    return np.sum(np.array(totals, np.uint32), dtype=np.uint32)


def _seal(value: Any) -> dict[str, Any]:
    body = json.dumps(value, sort_keys=True)
    return {"crc32": zlib.crc32(body.encode()), "body": body}


def _unseal(sealed: Mapping[str, Any]) -> Any:
    if zlib.crc32(sealed["body"].encode()) != sealed["crc32"]:
        raise ValueError("a checksum of its JSON does not agree")
    return json.loads(sealed["body"])


def _key_to_json(key: jax.Array) -> dict[str, Any]:
    """Keeps a typed key's implementation and words, or a raw uint32 key's words."""
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    words = np.asarray(jax.random.key_data(key) if typed else key)
    impl = str(jax.random.key_impl(key)) if typed else None
    return {"impl": impl, "shape": list(words.shape), "words": words.tolist()}


def _key_from_json(saved: Mapping[str, Any]) -> jax.Array:
    words = jnp.asarray(np.array(saved["words"], np.uint32).reshape(saved["shape"]))
    return words if saved["impl"] is None else jax.random.wrap_key_data(words, impl=saved["impl"])


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"
