"""Compiles steps for the TPU pods that configs name, without a TPU, and tabulates what they take.

  python -m launch.compile_for_tpu                             what is missing in docs/compile_for_tpu.json; the table
  python -m launch.compile_for_tpu --only=8b-sft-v5e-64 --again
  python -m launch.compile_for_tpu --programs=                 only writes the table again

Needs libtpu (pip install -e .[tpu]). Each program is stored when it is compiled, so a run can be stopped and resumed.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
import pathlib
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before jax: the TPUs compiled for are not there

import jax
import jax.numpy as jnp
from absl import app, flags
from ml_collections import ConfigDict

from gui_owl_jax import sharding
from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.models import qwen_vl
from gui_owl_jax.models.config import QwenVLConfig, get_preset
from gui_owl_jax.models.layers import remat_name
from gui_owl_jax.rl.objective import ObjectiveConfig
from gui_owl_jax.rollout import serving
from gui_owl_jax.training import aot, steps
from gui_owl_jax.training.losses import RL_ARRAYS, ComputeConfig
from gui_owl_jax.training.optimizer import OptimizerConfig
from gui_owl_jax.training.state import abstract_state
from launch import common, compile_table, hlo, roofline

PROGRAMS = ("train", "prefill", "decode")

_FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class Program:
    """A step to compile and what is known of it beforehand.

    Attributes:
      step: the jitted function.
      arguments: abstract arrays.
      chips: of the mesh.
      model_flops: of all chips, what the mathematics needs.
      done_flops: of all chips, with what is computed again.
      hbm_bytes: that a chip reads and writes, at least.
      terms: bytes on a chip by what they are for; they explain where a program does not fit.
      beside: bytes on a chip that the program does not see but that lie there while it runs.
    """

    step: Any
    arguments: tuple[Any, ...]
    chips: int
    model_flops: float
    done_flops: float
    hbm_bytes: float
    terms: dict[str, float]
    beside: float = 0.0


def model_of(config: ConfigDict) -> QwenVLConfig:
    """The model of a config; without its tower where `model.tower` is off (one block stays, which sees no patch)."""
    model = get_preset(config.model.preset)
    vision = dataclasses.replace(model.vision, window=config.model.vision_window)
    if not config.model.tower:
        vision = dataclasses.replace(vision, blocks=1, deepstack_indexes=())
        vision = dataclasses.replace(vision, width=1024, mlp_width=4096)
    return dataclasses.replace(model, vision=vision)


def train_program(config: ConfigDict) -> Program:
    """The update of SFT or MRPO, whichever the config's stage is."""
    model, mesh = model_of(config), _mesh(config, config.mesh)
    compute = common.build(ComputeConfig, config.compute, "compute")
    optimizer = common.build(OptimizerConfig, {**config.optimizer, "total_steps": config.steps}, "optimizer")
    rows, tokens, patches = config.data.rows, config.data.token_budget, config.data.patch_budget
    if rows % sharding.row_parts(mesh):
        raise ConfigError(f"config.data.rows: {rows} rows cannot be split into {sharding.row_parts(mesh)} parts")
    beside = 0.0
    weights = sum(_held(mesh, qwen_vl.abstract_params(model), sharding.param_shardings(model, mesh)))
    if config.stage == "mrpo":
        objective = common.build(ObjectiveConfig, config.objective, "objective")
        step = steps.mrpo_step(model, optimizer, objective, mesh, compute)
        batch = aot.abstract_batch(model, mesh, rows, tokens, patches, RL_ARRAYS)
        beside = weights  # those of the reference
    else:
        step = steps.supervised_step(model, optimizer, mesh, compute)
        batch = aot.abstract_batch(model, mesh, rows, tokens, patches)
    forward = roofline.forward_flops(model, rows, tokens, patches).forward
    remat = remat_name(compute.remat)
    again = {"none": 3, "dots": 3.1, "full": 4}[remat]
    state = abstract_state(model, optimizer, mesh)
    micro = rows // sharding.row_parts(mesh) // compute.accumulate
    tensor, width = mesh.shape["tensor"], jnp.dtype(compute.dtype).itemsize
    kept = micro * tokens * model.text.width * model.text.layers * width / tensor
    kept_vision = micro * patches * model.vision.width * model.vision.blocks * width / tensor
    terms = {
        "weights (f32)": weights,
        "moments (f32)": 2 * weights,
        "gradients (f32)": weights,
        "layer inputs kept, decoder": kept,
        "layer inputs kept, tower": kept_vision,
        "logits of a vocabulary part": micro * compute.chunk * model.text.vocab_size * 4 / tensor,
    }
    passes = {"none": 2, "dots": 2, "full": 3}[remat]
    used = _count(qwen_vl.abstract_params(model)) * width / tensor / mesh.shape["expert"]
    traffic = 28 / 4 * weights + 2 * passes * used + 4 * (kept + kept_vision)
    return Program(step, (state, batch), mesh.size, 3 * forward, again * forward, traffic, terms, beside)


def prefill_program(config: ConfigDict) -> Program:
    """Reading one full prompt per sampled row."""
    model, mesh, rows, tokens, patches = _sampling(config)
    length = tokens + config.sampler.max_new_tokens
    step = serving.prefill_step(model, mesh, rows, length, attention=config.compute.attention)
    batch = aot.abstract_prompts(model, mesh, rows, tokens, patches)
    del batch["loss_mask"]
    params, terms = serving.abstract_params(model, mesh), _sampling_terms(model, mesh, rows, length)
    flops = roofline.forward_flops(model, rows, tokens, patches, scored=1).forward
    return Program(step, (params, batch), mesh.size, flops, flops, sum(terms.values()), terms)


def decode_program(config: ConfigDict) -> Program:
    """One more token per sampled row, the cache nearly full."""
    model, mesh, rows, tokens, _ = _sampling(config)
    length = tokens + config.sampler.max_new_tokens
    step = serving.decode_step(model, mesh, rows)
    ids = jax.ShapeDtypeStruct((rows,), jnp.int32, sharding=sharding.batch_sharding(mesh))
    arguments = (serving.abstract_params(model, mesh), serving.abstract_cache(model, mesh, rows, length), ids, ids, ids)
    terms = _sampling_terms(model, mesh, rows, length)
    flops = roofline.decode_flops(model, rows, length)
    return Program(step, arguments, mesh.size, flops, flops, sum(terms.values()), terms)


def report(program: Program, topology: str, level: str = "default") -> dict[str, Any]:
    """Compiles a program at a level of optimisation and returns its row of the store, a plain dict."""
    if level != "default":
        jax.config.update("jax_optimization_level", level)
    compiled = aot.compile_step(program.step, *program.arguments)
    found = hlo.collectives(compiled.hlo)
    memory = roofline.chip(topology).memory
    peak = compiled.peak_bytes
    fits = compiled.fits and peak is not None and peak + program.beside <= memory
    wire = sum(one.wire for one in found)
    return {
        "topology": topology,
        "chips": program.chips,
        "fits": fits,
        "peak_bytes": peak,
        "beside_bytes": program.beside,
        "argument_bytes": compiled.argument_bytes,
        "temporary_bytes": compiled.temporary_bytes,
        "compile_seconds": round(compiled.seconds, 1),
        "level": level,
        "model_flops": program.model_flops,
        "done_flops": program.done_flops,
        "hbm_bytes": program.hbm_bytes,
        "collectives": hlo.summary(found),
        "wire_bytes": wire,
        "estimate": roofline.estimate(
            topology, program.chips, program.model_flops, program.done_flops, program.hbm_bytes, wire
        )
        if compiled.fits
        else None,
        "terms": program.terms,
        "why": "" if fits else refusal(program, compiled, memory),
    }


def refusal(program: Program, compiled: aot.Compiled, memory: float) -> str:
    """Says by how much a program does not fit and what takes the most."""
    needed = None if compiled.peak_bytes is None else compiled.peak_bytes + program.beside
    says = "more" if needed is None else f"{needed / 2**30:.2f} GiB"
    terms = program.terms | ({"weights of the reference (f32)": program.beside} if program.beside else {})
    largest = sorted(terms.items(), key=lambda item: -item[1])[:4]
    named = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in largest)
    return f"does not fit: needs {says} of {memory / 2**30:.2f} GiB a chip; the largest terms, in GiB: {named}"


def _mesh(config: ConfigDict, section: ConfigDict) -> jax.sharding.Mesh:
    return aot.topology_mesh(config.topology, common.build(sharding.MeshConfig, section, "mesh"))


def _sampling(config: ConfigDict) -> tuple[QwenVLConfig, jax.sharding.Mesh, int, int, int]:
    sampler = config.sampler
    mesh = _mesh(config, config.sampling_mesh)
    return model_of(config), mesh, sampler.row_buckets[-1], sampler.length_buckets[-1], sampler.patch_buckets[-1]


def _sampling_terms(model: QwenVLConfig, mesh: jax.sharding.Mesh, rows: int, length: int) -> dict[str, float]:
    cache = serving.abstract_cache(model, mesh, rows, length)
    params = serving.abstract_params(model, mesh)
    return {
        "weights (bf16)": sum(_held(mesh, params, sharding.param_shardings(model, mesh))),
        "keys and values (bf16)": sum(_held(mesh, cache, jax.tree.map(lambda leaf: leaf.sharding, cache))),
    }


def _held(mesh: jax.sharding.Mesh, shapes: Any, shardings: Any) -> list[float]:
    """Bytes on one chip of each array."""
    sizes = jax.tree.map(lambda a, s: math.prod(s.shard_shape(a.shape)) * a.dtype.itemsize, shapes, shardings)
    return jax.tree.leaves(sizes)


def _count(shapes: Any) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


BUILDERS: dict[str, Callable[[ConfigDict], Program]] = {
    "train": train_program,
    "prefill": prefill_program,
    "decode": decode_program,
}


def main(argv: list[str]) -> None:
    """Compiles what is asked for and missing, then writes the table."""
    del argv
    store = pathlib.Path(_FLAGS.store)
    table = common.read_json(store) if store.exists() else {}
    for module in _FLAGS.configs:
        experiment = importlib.import_module(f"configs.{module}")
        for name in experiment.NAMES:
            config = experiment.get_config(name)
            for kind in _FLAGS.programs:
                key = f"{name}/{kind}"
                wanted = not _FLAGS.only or name in _FLAGS.only
                sampled = kind == "train" or (config.sampling_mesh.data > 0 and "-sft-" not in name)
                if not wanted or not sampled or (key in table and not _FLAGS.again):
                    continue
                row = report(BUILDERS[kind](config), config.topology, _FLAGS.level)
                table = (common.read_json(store) if store.exists() else {}) | {key: row}
                common.write_json(store, table)
                print(compile_table.line(key, row), flush=True)
    pathlib.Path(_FLAGS.table).write_text(compile_table.document(table))


def define_flags() -> None:
    """Defines the command line."""
    flags.DEFINE_list("configs", ["anchor", "pod"], "modules in configs/ that list NAMES")
    flags.DEFINE_list("only", [], "of these names only")
    flags.DEFINE_list("programs", list(PROGRAMS), "train, prefill, decode; the last two for MRPO")
    flags.DEFINE_bool("again", False, "also compile what the store has")
    flags.DEFINE_string("level", "default", "default, or O0: compiles several times faster, for looking only")
    flags.DEFINE_string("store", "docs/compile_for_tpu.json", "where results are kept")
    flags.DEFINE_string("table", "docs/compile_for_tpu.md", "the table written from them")


if __name__ == "__main__":
    define_flags()
    app.run(main)
