"""Samples as one of two processes that share a mesh: `python -m tests.launch.sample_together INDEX PORT FOLDER`."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import jax
import numpy as np

from gui_owl_jax import sharding
from gui_owl_jax.hf.processor import EncodedPrompt
from gui_owl_jax.models import layout, qwen_vl
from gui_owl_jax.models.config import get_preset
from gui_owl_jax.rollout.engine import Engine, Sample, SamplerConfig, request_seed
from launch import common

NANO = get_preset("nano")
MODEL = dataclasses.replace(NANO, text=dataclasses.replace(NANO.text, layers=2))
SAMPLER = SamplerConfig(max_new_tokens=4, row_buckets=(8,), length_buckets=(32,), patch_buckets=(32,))
# Of each process, the prompts of one call of the sampler after the other. With 4 rows of each process, the 5 of the
# first one need two batches.
CALLS = ((5, 2), (1,))


def weights() -> Any:
    """Parameters as numpy arrays, the same in every process."""
    params = qwen_vl.init_params(MODEL, jax.random.key(1))
    params["text"]["norm"]["scale"] *= 5  # some tokens shall be much likelier than others
    return jax.device_get(params)


def requests(process: int, call: int) -> tuple[list[EncodedPrompt], np.ndarray]:
    """Prompts with a screen each, and their seeds."""
    rng = np.random.default_rng([process, call])
    prompts = []
    for _ in range(CALLS[process][call]):
        patches = rng.integers(0, 255, (16, MODEL.vision.patch_columns), dtype=np.uint8)
        ids = [MODEL.vision_start_token_id, *[MODEL.image_token_id] * 4, MODEL.vision_end_token_id]
        ids += rng.integers(1, 900, rng.integers(3, 20)).tolist()
        prompts.append(EncodedPrompt(np.array(ids, np.int32), (layout.ImagePatches(patches, (4, 4)),)))
    return prompts, np.stack([request_seed(process, call, i) for i in range(len(prompts))])


def sample(engine: Engine, params: Any, process: int) -> list[Sample]:
    """All responses of a process."""
    samples: list[Sample] = []
    for call in range(len(CALLS[process])):
        samples += engine.generate(params, *requests(process, call))
    engine.join(params)
    return samples


def main(index: int, port: int, folder: str) -> None:
    """Samples on two meshes: where chips that share matrices are of one process, and where they are of both."""
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, index)
    training = sharding.make_mesh(sharding.MeshConfig(fsdp=8))
    host, places = weights(), sharding.param_shardings(MODEL, training)
    held = jax.tree.map(lambda x, at: jax.make_array_from_callback(x.shape, at, lambda i: x[i]), host, places)
    by_turns = sorted(jax.devices(), key=lambda device: (device.id % 4, device.process_index))
    for name, devices in {"inside": jax.devices(), "across": by_turns}.items():
        mesh = jax.sharding.Mesh(np.reshape(devices, (4, 1, 2, 1)), sharding.MESH_AXES)
        owners = {tuple(device.process_index for device in pair) for pair in mesh.devices.reshape(4, 2)}
        assert owners == ({(0, 0), (1, 1)} if name == "inside" else {(0, 1)})
        params = common.sampling_params(held, MODEL, training, mesh, "float32")
        samples = sample(Engine(MODEL, SAMPLER, (7,), mesh=mesh), params, index)
        ids, logps = ([getattr(s, field) for s in samples] for field in ("token_ids", "logps"))
        np.savez(f"{folder}/{name}{index}.npz", ids=np.concatenate(ids), logps=np.concatenate(logps))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
