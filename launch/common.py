"""What every main shares: reading a config, opening a run folder or a checkpoint as a policy, device set-up."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from absl import app, logging
from ml_collections import ConfigDict

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
from gui_owl_jax.training.checkpoints import Checkpoints

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """A model with everything needed to act: its config, parameters, tokenizer and image processor."""

    model: QwenVLConfig
    params: Any
    processor: Processor


def build(cls: type[T], section: ConfigDict | dict, name: str) -> T:
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
    return tuple(_as_tuple(v) for v in value) if isinstance(value, (list, tuple)) else value


def setup_devices(config: ConfigDict) -> None:
    """Joins the multi-host runtime when config.distributed says so, and turns on the compilation cache."""
    if config.distributed.enabled:
        given = {k: v for k, v in config.distributed.to_dict().items() if k != "enabled" and v not in ("", -1)}
        jax.distributed.initialize(**given)  # on a TPU pod all of it is found out by itself
    cache = config.compilation_cache or os.path.join(".cache", "jax")
    jax.config.update("jax_compilation_cache_dir", os.path.abspath(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
    logging.info("process %d of %d, devices %s", jax.process_index(), jax.process_count(), jax.devices())


def git_commit() -> str:
    """The commit that is checked out, with "+changes" when the tree differs from it; "unknown" outside git."""
    root = pathlib.Path(__file__).resolve().parent.parent
    try:
        run = lambda *args: subprocess.run(  # noqa: E731
            ["git", *args], cwd=root, capture_output=True, text=True, check=True
        ).stdout.strip()
        return run("rev-parse", "HEAD") + ("+changes" if run("status", "--porcelain", "-uno") else "")
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


def start_run(workdir: str, config: ConfigDict, policy: Policy) -> None:
    """Process 0 stores the resolved config, the commit, the model's config and the processor in the run folder."""
    if jax.process_index() != 0:
        return
    folder = pathlib.Path(workdir)
    write_json(folder / "run.json", {"config": config.to_dict(), "commit": git_commit()})
    write_json(folder / "model" / "config.json", config_io.config_to_json(policy.model))
    policy.processor.save(folder / "model")


def image_config(config: ConfigDict, model: QwenVLConfig) -> ImageConfig:
    """The image processor's settings: sizes from the config, patch geometry from the model."""
    vision = model.vision
    return ImageConfig(
        patch_size=vision.patch_size,
        merge_size=vision.merge_size,
        temporal_patch_size=vision.temporal_patch_size,
        min_pixels=config.image.min_pixels,
        max_pixels=config.image.max_pixels,
    )


def make_tokenizer(config: ConfigDict, model: QwenVLConfig) -> Tokenizer:
    """The tokenizer named by config.tokenizer: "qwen", "small" (trained on synthetic GUI text) or a folder."""
    if config.tokenizer == "qwen":
        return qwen_tokenizer()
    if config.tokenizer == "small":
        from envs.virtual import corpus  # here, because only this choice needs the virtual world

        return small_tokenizer(corpus.lines(), model.text.vocab_size, special_ids(model))
    return Tokenizer.load(config.tokenizer)


def special_ids(model: QwenVLConfig) -> dict[str, int]:
    """Where the model's config puts the tokens that it names."""
    return {
        "<|image_pad|>": model.image_token_id,
        "<|video_pad|>": model.video_token_id,
        "<|vision_start|>": model.vision_start_token_id,
        "<|vision_end|>": model.vision_end_token_id,
    }


def load_policy(config: ConfigDict, source: str, *, step: int | None = None, mesh=None) -> Policy:
    """Opens a policy.

    Args:
      config: the experiment; its model, tokenizer and image sections are used where the source has none of its own.
      source: "random" (weights drawn from config.seed), a Hugging Face checkpoint folder, or a run folder of
        launch.train.
      step: which checkpoint of a run folder; the latest by default.
      mesh: restore sharded onto this mesh.

    Raises:
      CheckpointError: the source is none of these, or damaged.
    """
    folder = pathlib.Path(source)
    if source == "random":
        model = model_config.get_preset(config.model.preset)
        processor = Processor(make_tokenizer(config, model), image_config(config, model))
        return Policy(model, qwen_vl.init_params(model, jax.random.key(config.seed)), processor)
    if (folder / "run.json").exists():
        model = config_io.config_from_json(read_json(folder / "model" / "config.json"))
        params = Checkpoints(folder / "checkpoints").restore_params(qwen_vl.abstract_params(model), step=step)
        return Policy(model, params, Processor.load(folder / "model"))
    if (folder / "config.json").exists():
        model, params = hf_checkpoint.import_hf(folder)
        if (folder / "tokenizer.json").exists():
            processor = Processor.load(folder)
        else:
            processor = Processor(make_tokenizer(config, model), image_config(config, model))
        return Policy(model, params, processor)
    raise CheckpointError(
        f'{source}: neither a run folder (run.json) nor a Hugging Face checkpoint (config.json), nor "random"'
    )


def make_engine(policy: Policy, sampler: SamplerConfig, config: ConfigDict) -> Engine:
    """The sampler of a policy; a response ends with im_end or endoftext."""
    tokenizer = policy.processor.tokenizer
    return Engine(policy.model, sampler, (tokenizer.im_end, tokenizer.endoftext), config.compute.dtype)


def local_params(params: Any) -> Any:
    """Parameters for sampling on this host: gathered onto its first device when they are sharded over a mesh."""
    device = jax.local_devices()[0]
    if all(leaf.sharding.device_set == {device} for leaf in jax.tree.leaves(params)):
        return params
    gathered = jax.tree.map(lambda leaf: jax.device_get(_replicate(leaf)), params)
    return jax.device_put(gathered, device)


def _replicate(leaf: jax.Array) -> jax.Array:
    where = jax.sharding.NamedSharding(leaf.sharding.mesh, jax.sharding.PartitionSpec())
    return jax.jit(lambda x: x, out_shardings=where)(leaf).addressable_data(0)


def run_main(main: Callable[[list[str]], None]) -> None:
    """Runs an absl main; an error of ours ends the program with one line instead of a traceback."""

    def guarded(argv: list[str]) -> None:
        try:
            main(argv)
        except GuiOwlError as error:
            logging.debug("traceback", exc_info=True)
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            sys.exit(1)

    logging.use_absl_handler()
    app.run(guarded)


def per_host(items: list) -> list:
    """This process's share of a list: every process_count-th item."""
    return items[jax.process_index() :: jax.process_count()]


def to_float(metrics: dict) -> dict[str, float]:
    """Device scalars as Python floats."""
    return {k: float(np.asarray(v)) for k, v in jax.device_get(metrics).items()}
