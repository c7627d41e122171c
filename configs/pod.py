"""SFT and MRPO of the published sizes on TPU pods.

Command:  python -m launch.train --config=configs/pod.py:8b-sft-v5e-64 --config.init=FOLDER --config.data.path=PREFIX \
              --workdir=runs/8b            on every host of the pod
          python -m launch.compile_for_tpu --only=8b-sft-v5e-64     compiles it, on any host, without a TPU
Hardware: the pod that the name ends with; `NAMES` lists what is shipped, docs/compile_for_tpu.md what each takes.
Time:     not measured on a TPU; the estimates in docs/compile_for_tpu.md state their assumptions.
Result:   none yet.

A name is SIZE-STAGE-POD or SIZE-STAGE-POD-32k. Rows hold 8,192 tokens and as many patches as 16,384 (32k: 32,768 and
65,536): two full-HD screens, or eight of 1280 x 704 in 32k. Every chip holds one row at a time.
"""

from ml_collections import ConfigDict

from configs import base

# Generation and chips -> chips along the axes of the slice.
TOPOLOGIES = {
    "v5e-8": "v5e:2x4",
    "v5e-16": "v5e:4x4",
    "v5e-64": "v5e:8x8",
    "v5e-128": "v5e:8x16",
    "v5e-256": "v5e:16x16",
    "v6e-64": "v6e:8x8",
    "v6e-256": "v6e:16x16",
    "v5p-64": "v5p:4x4x4",
    "v5p-512": "v5p:8x8x8",
}

# (size, pod) -> mesh of training, mesh of sampling. Weights and moments must be split over enough chips to leave room
# for activations; the towers' width of 1,152 can be split 128-fold at most. For sampling the weights, in bfloat16, must
# lie within the tensor axis, which cannot be larger than the number of key heads.
_MESHES = {
    ("2b", "v5e-16"): ({"fsdp": 16}, {"data": 8, "tensor": 2}),
    ("2b", "v5e-256"): ({"data": 2, "fsdp": 128}, {"data": 128, "tensor": 2}),
    ("4b", "v5e-16"): ({"fsdp": 16}, {"data": 4, "tensor": 4}),
    ("4b", "v5e-64"): ({"fsdp": 64}, {"data": 16, "tensor": 4}),
    ("8b", "v5e-16"): ({"fsdp": 8, "tensor": 2}, {"data": 4, "tensor": 4}),
    ("8b", "v5e-64"): ({"fsdp": 64}, {"data": 16, "tensor": 4}),
    ("8b", "v5e-256"): ({"data": 2, "fsdp": 128}, {"data": 64, "tensor": 4}),
    ("32b", "v5p-64"): ({"fsdp": 64}, {"data": 16, "tensor": 4}),
    ("32b", "v6e-256"): ({"data": 2, "fsdp": 128}, {"data": 32, "tensor": 8}),
    ("30b-a3b", "v6e-64"): ({"fsdp": 8, "expert": 8}, {"data": 8, "tensor": 2, "expert": 4}),
    ("235b-a22b", "v5p-512"): ({"fsdp": 64, "expert": 8}, {"data": 16, "tensor": 4, "expert": 8}),
    ("qwen2.5-3b", "v5e-8"): ({"fsdp": 8}, {"data": 4, "tensor": 2}),
}
# Rows of 32k tokens: four chips share one, each keeping a quarter of its tokens between the layers. They are those of
# one host, so that no two processes share a row.
_LONG_MESHES = {
    "v5e-64": ({"fsdp": 16, "tensor": 4}, {"data": 16, "tensor": 4}),
    "v5e-256": ({"fsdp": 64, "tensor": 4}, {"data": 64, "tensor": 4}),
}

NAMES = (
    *(f"{size}-{stage}-{pod}" for size, pod in _MESHES for stage in ("sft", "mrpo")),
    *(f"8b-{stage}-{pod}-32k" for pod in _LONG_MESHES for stage in ("sft", "mrpo")),
)


def get_config(arg: str = "8b-sft-v5e-64") -> ConfigDict:
    """`arg` is one of `NAMES`."""
    if arg not in NAMES:
        raise ValueError(f"no pod config {arg!r}; choose one of {', '.join(NAMES)}")
    long = arg.endswith("-32k")
    size, stage, generation, chips = arg.removesuffix("-32k").rsplit("-", 3)
    pod = f"{generation}-{chips}"
    training, sampling = _LONG_MESHES[pod] if long else _MESHES[size, pod]
    length = 32_768 if long else 8_192
    rows = int(chips) // training.get("tensor", 1)
    remat = {"remat": "full", "chunk": 512, "attention": "splash"}

    config = base.get_config()
    config.stage = "mrpo" if stage == "mrpo" else "supervised"
    config.topology = TOPOLOGIES[pod]
    config.model.preset = size
    config.model.tower = True  # False: the decoder alone, for comparisons
    config.mesh.update(training)
    config.sampling_mesh = ConfigDict({"data": 1, "fsdp": 1, "tensor": 1, "expert": 1} | sampling)
    config.compute = ConfigDict({"dtype": "bfloat16", "accumulate": 1} | remat)
    config.distributed.enabled = True
    config.image.max_pixels = 1920 * 1088
    budgets = {"token_budget": length, "patch_budget": 2 * length}
    hosts = max(1, int(chips) // 4)
    config.data.update({"rows": rows, "lanes": hosts, **budgets})
    config.rl.update({"tasks": max(1, rows // 8), "row_buckets": (-(-rows // hosts),), **budgets})
    # Each chip that holds its own part of the cache samples 8 episodes at a time (32k: 1).
    streams = int(chips) // sampling.get("tensor", 1) * (1 if long else 8)
    config.sampler.update({"row_buckets": (streams,), "max_new_tokens": 512})
    config.sampler.update({"length_buckets": (length - 512,), "patch_buckets": (2 * length,)})
    return config
