"""What every main shares: reading a config, opening a run folder or a checkpoint as a policy, devices, processes."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging as python_logging
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np
from absl import app, flags, logging
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from gui_owl_jax import sharding
from gui_owl_jax.agent.errors import CheckpointError, ConfigError, GuiOwlError
from gui_owl_jax.hf import checkpoint as hf_checkpoint
from gui_owl_jax.hf import config_io
from gui_owl_jax.hf.images import ImageConfig
from gui_owl_jax.hf.processor import Processor
from gui_owl_jax.hf.tokenizer import Tokenizer, qwen_tokenizer, small_tokenizer
from gui_owl_jax.models import config as model_config
from gui_owl_jax.models import qwen_vl
from gui_owl_jax.models.config import QwenVLConfig
from gui_owl_jax.rollout.engine import Engine, SamplerConfig
from gui_owl_jax.training import lora
from gui_owl_jax.training.checkpoints import Checkpoints
from gui_owl_jax.training.metrics import MetricsWriter

T = TypeVar("T")


# ------------------------------------------------------------------------------------------------ programs and configs


def run_main(main: Callable[[list[str]], None]) -> None:
    """Runs an absl main; a bad flag or an error of ours ends the program with one line and exit code 1."""

    def parse(argv: Sequence[str]) -> list[str]:
        try:
            rest = flags.FLAGS(argv)
            getattr(getattr(flags.FLAGS, "config", None), "seed", None)  # a file that failed to load says so when used
            return rest
        except flags.Error as error:
            _give_up("flags", error)
        except OSError as error:  # the config file is read while flags are parsed
            _give_up("config file", error)
        except AttributeError as error:  # what ml_collections raises for --config.x where there is no x
            paths = {flag: flag.split("=")[0].split(".")[1:] for flag in argv if flag.startswith("--config.")}
            given = [flag for flag, names in paths.items() if any(f"'{name}" in str(error) for name in names)]
            if not given:
                raise
            said = str(error).strip("'\"").replace("\\n", ". ").replace("\\", "")
            _give_up("flags", f"{given[0]}: the config has no field {said}")

    def guarded(argv: list[str]) -> None:
        try:
            main(argv)
        except GuiOwlError as error:
            logging.debug("traceback", exc_info=True)
            _give_up(type(error).__name__, error)

    logging.use_absl_handler()
    # What installed libraries tell (a page per checkpoint) is shown from warnings on.
    warning = python_logging.WARNING
    logging.get_absl_handler().addFilter(lambda r: r.levelno >= warning or "site-packages" not in r.pathname)
    app.run(guarded, flags_parser=parse)


def _give_up(what: str, error: Exception | str) -> NoReturn:
    print(f"{what}: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(1)


def build(cls: type[T], section: ConfigDict | Mapping[str, Any], name: str) -> T:
    """Makes dataclass `cls` from a config section; raises ConfigError naming a field that it does not have."""
    known = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values = dict(section)
    unknown = sorted(set(values) - known)
    if unknown:
        raise ConfigError(f"config.{name} has no field {unknown[0]!r}; it has {sorted(known)}")
    try:
        return cls(**{k: _as_tuple(v) for k, v in values.items()})
    except TypeError as error:
        raise ConfigError(f"config.{name}: {error}") from error


def _as_tuple(value: Any) -> Any:
    return tuple(_as_tuple(v) for v in value) if isinstance(value, list | tuple) else value


# ------------------------------------------------------------------------------------------------ files of a run


def git_commit() -> str:
    """The commit that is checked out, with "+changes" when the tree differs from it; "unknown" outside git."""
    root = pathlib.Path(__file__).resolve().parent.parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Writes JSON under a temporary name and renames it, so that the file is whole or absent."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value, indent=1, default=str) + "\n")
    part.replace(path)


def read_json(path: str | os.PathLike) -> Any:
    """Reads JSON; raises ConfigError naming the file when it is missing or malformed."""
    try:
        return json.loads(pathlib.Path(path).read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


class RunMetrics:
    """The metrics of a run: process 0 writes them (`MetricsWriter`), the others do nothing."""

    def __init__(self, folder: str | os.PathLike):
        self._writer = MetricsWriter(pathlib.Path(folder)) if jax.process_index() == 0 else None

    def __enter__(self) -> RunMetrics:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def truncate_after(self, step: int) -> None:
        """Drops the lines after a step, which a resumed run writes again."""
        if self._writer is not None:
            self._writer.truncate_after(step)

    def write(self, step: int, values: Mapping[str, float], timings: Mapping[str, float]) -> None:
        """Appends a line."""
        if self._writer is not None:
            self._writer.write(step, values, timings)

    def flush(self) -> None:
        """Forces all lines onto the disk, before a checkpoint is saved."""
        if self._writer is not None:
            self._writer.flush()


def start_run(workdir: str, config: ConfigDict, policy: Policy) -> None:
    """Process 0 stores the resolved config, the commit, the model's config and the processor in the run folder."""
    if jax.process_index() != 0:
        return
    folder = pathlib.Path(workdir)
    write_json(folder / "model" / "config.json", config_io.config_to_json(policy.model))
    policy.processor.save(folder / "model")
    if policy.generation is not None:
        write_json(folder / "model" / "generation_config.json", policy.generation)
    write_json(folder / "run.json", {"config": config.to_dict(), "commit": git_commit()})


# ------------------------------------------------------------------------------------------------ policies


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """A model with everything needed to act: its config, parameters, tokenizer and image processor.

    Attributes:
      generation: content of the checkpoint's generation_config.json, which travels with the run to its export.
    """

    model: QwenVLConfig
    params: Any
    processor: Processor
    generation: dict[str, Any] | None = None


def load_policy(
    config: ConfigDict,
    source: str,
    *,
    step: int | None = None,
    mesh: jax.sharding.Mesh | None = None,
    dtype: Any = np.float32,
) -> Policy:
    """Opens a policy.

    Args:
      config: the experiment; its model, tokenizer and image sections are used where the source has none of its own.
        model.vision_window is a matter of how batches are laid out, in no checkpoint, and always taken from here.
      source: "random" (weights drawn from config.seed), a Hugging Face checkpoint folder, or a run folder of
        launch.train (adapters of LoRA are merged into the weights).
      step: which checkpoint of a run folder; the latest by default.
      mesh: where the parameters shall lie; None: on this process's first device.
      dtype: of the parameters of a Hugging Face checkpoint; None keeps the stored one. All others are float32.

    Raises:
      CheckpointError: the source is none of these, or damaged.
    """
    folder = pathlib.Path(source)
    if source == "random":
        model = _with_window(config, model_config.get_preset(config.model.preset))
        init = jax.jit(qwen_vl.init_params, static_argnums=0, out_shardings=_places(model, mesh))
        return Policy(model, init(model, jax.random.key(config.seed)), _make_processor(config, model))
    if (folder / "run.json").exists():
        model = _with_window(config, hf_checkpoint.load_config(folder / "model"))
        trained = read_json(folder / "run.json")["config"].get("lora", {})
        adapters = build(lora.LoraConfig, trained, "lora")
        wanted = lora.abstract_params(model, adapters)
        if mesh is not None:
            places = lora.param_shardings(model, mesh, adapters)
            wanted = jax.tree.map(lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), wanted, places)
        with Checkpoints(folder / "checkpoints") as checkpoints:
            params = checkpoints.restore_params(wanted, step=step)
        generation = hf_checkpoint.load_generation(folder / "model")
        return Policy(model, lora_merger(adapters)(params), Processor.load(folder / "model"), generation)
    if (folder / "config.json").exists():
        if step is not None:
            raise ConfigError(f"step {step} asked for, but {source} is a Hugging Face checkpoint, which has no steps")
        places = _places(hf_checkpoint.load_config(folder), mesh)
        model, params = hf_checkpoint.import_hf(folder, dtype, places)
        model = _with_window(config, model)
        has_tokenizer = (folder / "tokenizer.json").exists()
        processor = Processor.load(folder) if has_tokenizer else _make_processor(config, model)
        return Policy(model, params, processor, hf_checkpoint.load_generation(folder))
    raise CheckpointError(
        f'{source}: neither a run folder (run.json) nor a Hugging Face checkpoint (config.json), nor "random"'
    )


def load_actor(config: ConfigDict, source: str) -> tuple[Policy, jax.sharding.Mesh | None]:
    """Opens a policy that shall only sample, and says on which mesh it lies; see `load_policy`, `sampling_mesh`."""
    mesh = sampling_mesh(config)
    policy = load_policy(config, source, mesh=mesh)
    if mesh is not None:
        params = sampling_params(policy.params, policy.model, mesh, mesh, config.compute.dtype)
        policy = dataclasses.replace(policy, params=params)
    return policy, mesh


def lora_merger(adapters: lora.LoraConfig) -> Callable[[Any], Any]:
    """Gives the function that turns trained parameters into the model's own: `lora.merge`, or nothing without LoRA."""
    return jax.jit(functools.partial(lora.merge, adapters)) if adapters.rank else lambda params: params


def _with_window(config: ConfigDict, model: QwenVLConfig) -> QwenVLConfig:
    if model.vision.window_side:  # the tower has windows of its own
        return model
    return dataclasses.replace(model, vision=dataclasses.replace(model.vision, window=config.model.vision_window))


def _places(model: QwenVLConfig, mesh: jax.sharding.Mesh | None) -> Any:
    """Where the parameters of a model go: a tree of shardings, or one for all."""
    if mesh is None:
        return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return sharding.param_shardings(model, mesh)


def _make_processor(config: ConfigDict, model: QwenVLConfig) -> Processor:
    bounds = {name: config.image[name] or None for name in ("min_pixels", "max_pixels")}
    return Processor(make_tokenizer(config, model), ImageConfig.for_model(model, **bounds))


def make_tokenizer(config: ConfigDict, model: QwenVLConfig) -> Tokenizer:
    """The tokenizer named by config.tokenizer: "qwen", "small" (trained on synthetic GUI text) or a folder.

    Raises:
      ConfigError: it does not put its special tokens where the model has them, or has more tokens than the model.
    """
    places = {
        "<|image_pad|>": model.image_token_id,
        "<|video_pad|>": model.video_token_id,
        "<|vision_start|>": model.vision_start_token_id,
        "<|vision_end|>": model.vision_end_token_id,
    }
    if config.tokenizer == "qwen":
        thinks = config.model.preset.endswith("-thinking")
        tokenizer = qwen_tokenizer().for_thinking() if thinks else qwen_tokenizer()
    elif config.tokenizer == "small":
        from envs.virtual import corpus  # here, because only this choice needs the virtual world

        tokenizer = small_tokenizer(corpus.lines(), model.text.vocab_size, places)
    else:
        tokenizer = Tokenizer.load(config.tokenizer)
    moved = [name for name, place in places.items() if tokenizer.special(name) != place]
    if moved:
        raise ConfigError(f"config.tokenizer: {config.tokenizer!r} does not have {moved[0]} where the model has it")
    if tokenizer.vocab_size > model.text.vocab_size:
        raise ConfigError(
            f"config.tokenizer: {config.tokenizer!r} has {tokenizer.vocab_size} tokens, the model's embedding "
            f"{model.text.vocab_size} rows"
        )
    return tokenizer


def make_engine(
    policy: Policy, sampler: SamplerConfig, config: ConfigDict, mesh: jax.sharding.Mesh | None = None
) -> Engine:
    """The sampler of a policy, on one device or a mesh; a response ends with im_end or endoftext."""
    tokenizer = policy.processor.tokenizer
    return Engine(policy.model, sampler, (tokenizer.im_end, tokenizer.endoftext), config.compute.dtype, mesh)


# ------------------------------------------------------------------------------------------------ devices, processes


def setup_devices(config: ConfigDict) -> None:
    """Joins the multi-host runtime when config.distributed says so, and turns on the compilation cache."""
    if config.distributed.enabled:
        given = {k: v for k, v in config.distributed.to_dict().items() if k != "enabled" and v not in ("", -1)}
        jax.distributed.initialize(**given)  # on a TPU pod all of it is found out by itself
        # Processes connect at their first collective operation, and wait 30 s for each other at most (gloo). Here they
        # are together; later one may compile for minutes while the other has its program from the cache.
        multihost_utils.sync_global_devices("start")
    cache = config.compilation_cache or os.path.join(".cache", "jax")
    jax.config.update("jax_compilation_cache_dir", os.path.abspath(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
    logging.info("process %d of %d, devices %s", jax.process_index(), jax.process_count(), jax.devices())


def make_mesh(config: ConfigDict) -> jax.sharding.Mesh:
    """The mesh of config.mesh over all devices of all processes."""
    return sharding.make_mesh(build(sharding.MeshConfig, config.mesh, "mesh"))


def sampling_mesh(config: ConfigDict) -> jax.sharding.Mesh | None:
    """The mesh of config.sampling_mesh over all devices of all processes; None where its data axis is 0."""
    if config.sampling_mesh.data == 0:
        return None
    return sharding.make_mesh(build(sharding.MeshConfig, config.sampling_mesh, "sampling_mesh"))


def check_rows(rows: int, mesh: jax.sharding.Mesh, field: str) -> None:
    """Raises ConfigError when a global batch of `rows` cannot be split evenly over the mesh and the processes."""
    parts = sharding.row_parts(mesh)
    if rows % parts or rows % jax.process_count():
        raise ConfigError(
            f"config.{field}: {rows} rows cannot be split over {parts} parts of the mesh (data x fsdp x expert) "
            f"and {jax.process_count()} processes"
        )


def per_host(items: list[T]) -> list[T]:
    """This process's share of a list: every process_count-th item."""
    return items[jax.process_index() :: jax.process_count()]


def gather_hosts(value: Any) -> list[Any]:
    """Gives every process the list of all processes' values, anything that JSON holds."""
    if jax.process_count() == 1:
        return [value]
    own = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.array([len(own)]))[:, 0]
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: len(own)] = own
    rows = multihost_utils.process_allgather(padded)
    return [json.loads(row[:length].tobytes()) for row, length in zip(rows, lengths)]


def sampling_params(
    params: Any, model: QwenVLConfig, mesh: jax.sharding.Mesh, sampling: jax.sharding.Mesh | None, dtype: str
) -> Any:
    """Parameters for sampling: on a mesh of their own, where there is one, else by `local_params`.

    To that mesh they go from chip to chip, in the type of the matmuls, and no chip ever holds them all.

    Args:
      params: on `mesh`.
      model: the model.
      mesh: that of training.
      sampling: that of sampling; None: one device per process.
      dtype: of the matmuls of sampling.
    """
    if sampling is None:
        return local_params(params, mesh)
    cast = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    return jax.device_put(cast, sharding.param_shardings(model, sampling))


def local_params(params: Any, mesh: jax.sharding.Mesh) -> Any:
    """Parameters for sampling on this process: its first device's copy, gathered when they are sharded."""
    if mesh.size > 1:
        params = jax.tree.map(lambda leaf: leaf.addressable_data(0), _replicate(mesh)(params))
    return params


@functools.cache
def _replicate(mesh: jax.sharding.Mesh) -> Callable[[Any], Any]:
    return jax.jit(lambda tree: tree, out_shardings=sharding.replicated(mesh))


def to_float(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Device scalars as Python floats."""
    return {k: float(np.asarray(v)) for k, v in jax.device_get(metrics).items()}
