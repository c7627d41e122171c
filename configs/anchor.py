"""Steps whose memory and traffic another trainer's compile of the same size is known for: sequence 4,096, a row a chip.

Command:  python -m launch.compile_for_tpu --configs=anchor
Hardware: none; it is compiled, not run.
Time:     one to five minutes of compiling each.
Result:   docs/compile_for_tpu.md.

`text` steps have no image and no tower, `experts` neither, with the experts spread over chips; `vl` steps train the
tower on one image of 768 x 768 a row.
"""

from ml_collections import ConfigDict

from configs import pod

# Mesh of training.
_MESHES = {
    "2b-vl-v5e-256": {"fsdp": 256},
    "8b-text-v5e-256": {"fsdp": 256},
    "8b-text-v5e-16": {"fsdp": 16},
    "30b-a3b-text-v6e-64": {"fsdp": 64},
    "30b-a3b-experts-v6e-64": {"fsdp": 8, "expert": 8},
}
NAMES = tuple(_MESHES)


def get_config(arg: str = "8b-text-v5e-256") -> ConfigDict:
    """`arg` is one of `NAMES`."""
    if arg not in _MESHES:
        raise ValueError(f"no anchor {arg!r}; choose one of {', '.join(NAMES)}")
    size, kind, generation, chips = arg.rsplit("-", 3)
    config = pod.get_config()
    config.topology = pod.TOPOLOGIES[f"{generation}-{chips}"]
    config.model.preset = size
    config.model.tower = kind == "vl"
    config.mesh.update({"data": 1, "fsdp": 1, "tensor": 1, "expert": 1} | _MESHES[arg])
    config.sampling_mesh.update({"data": 0})  # nothing is sampled
    patches = (768 // 16) ** 2 if kind == "vl" else 0
    config.data.update({"rows": int(chips), "token_budget": 4096, "patch_budget": patches})
    return config
