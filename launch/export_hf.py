"""Writes a policy as a Hugging Face checkpoint folder that `transformers` loads unchanged.

python -m launch.export_hf --policy=runs/quickstart/mrpo --out=runs/quickstart/export
"""

from __future__ import annotations

from absl import flags
from ml_collections import config_flags

from gui_owl_jax.hf import checkpoint
from launch import common

CONFIG = config_flags.DEFINE_config_file("config", "configs/base.py", "Used where the policy brings no own settings.")
POLICY = flags.DEFINE_string("policy", None, "A run folder or a Hugging Face folder.", required=True)
OUT = flags.DEFINE_string("out", None, "The folder to write; must not exist.", required=True)
STEP = flags.DEFINE_integer("step", None, "Which checkpoint of the run; the latest by default.")
DTYPE = flags.DEFINE_enum(
    "dtype", None, ["float32", "bfloat16"], "Type of the stored weights; by default that of the policy's own."
)


def main(argv: list[str]) -> None:
    """Exports, then says how to load it."""
    del argv
    policy = common.load_policy(CONFIG.value, POLICY.value, step=STEP.value, dtype=None)
    checkpoint.export_hf(policy.model, policy.params, OUT.value, policy.processor, dtype=DTYPE.value)
    print(f"exported to {OUT.value}; load it with:")
    print("  from transformers import AutoModelForImageTextToText")
    print(f'  model = AutoModelForImageTextToText.from_pretrained("{OUT.value}")')


if __name__ == "__main__":
    common.run_main(main)
