"""Writes a policy as a Hugging Face checkpoint folder that `transformers` loads unchanged.

python -m launch.export_hf --policy=runs/quickstart/mrpo --out=runs/quickstart/export

With --config.mesh (and --config.distributed) as in training the weights stay sharded over the devices, and pass through
the host one tensor at a time.
"""

from __future__ import annotations

import math

import jax
from absl import flags
from ml_collections import config_flags

from gui_owl_jax.hf import checkpoint, names
from launch import common

CONFIG = config_flags.DEFINE_config_file("config", "configs/base.py", "Used where the policy brings no own settings.")
POLICY = flags.DEFINE_string("policy", None, "A run folder or a Hugging Face folder.", required=True)
OUT = flags.DEFINE_string("out", None, "The folder to write; must not exist.", required=True)
STEP = flags.DEFINE_integer("step", None, "Which checkpoint of the run; the latest by default.")
DTYPE = flags.DEFINE_enum(
    "dtype", None, ["float32", "bfloat16"], "Type of the stored weights; by default that of the policy's own."
)
EXPERT_LAYOUT = flags.DEFINE_enum(
    "expert_layout", None, names.EXPERT_LAYOUTS, "How the tensors of experts are stored; by default as published."
)


def main(argv: list[str]) -> None:
    """Exports, then says how to load it."""
    del argv
    config = CONFIG.value
    common.setup_devices(config)
    sharded = math.prod(config.mesh.to_dict().values()) != 1
    mesh = common.make_mesh(config) if sharded else None
    policy = common.load_policy(config, POLICY.value, step=STEP.value, mesh=mesh, dtype=None)
    checkpoint.export_hf(
        policy.model,
        policy.params,
        OUT.value,
        policy.processor,
        dtype=DTYPE.value,
        generation=policy.generation,
        expert_layout=EXPERT_LAYOUT.value,
    )
    if jax.process_index() == 0:
        print(f"exported to {OUT.value}; load it with:")
        print("  from transformers import AutoModelForImageTextToText")
        print(f'  model = AutoModelForImageTextToText.from_pretrained("{OUT.value}")')


if __name__ == "__main__":
    common.run_main(main)
