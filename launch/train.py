"""Trains one stage: supervised (pre-training, SFT) or MRPO.

  python -m launch.train --config=configs/nano_sft.py --workdir=runs/quickstart/sft --config.steps=100

A run that was interrupted goes on from its latest checkpoint when the same command is given again. On a TPU pod give
--config.distributed.enabled=True on every host.
"""

from __future__ import annotations

from absl import flags
from ml_collections import config_flags

from gui_owl_jax.agent.errors import ConfigError
from launch import common, mrpo, supervised

CONFIG = config_flags.DEFINE_config_file("config", None, "The experiment.", lock_config=True)
WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run: checkpoints, metrics, config.", required=True)
flags.mark_flag_as_required("config")

STAGES = {"supervised": supervised.train, "mrpo": mrpo.train}


def main(argv: list[str]) -> None:
    """Runs the stage that the config names."""
    del argv
    config = CONFIG.value
    if config.stage not in STAGES:
        raise ConfigError(f"config.stage: {config.stage!r} is none of {', '.join(STAGES)}")
    common.setup_devices(config)
    STAGES[config.stage](config, WORKDIR.value)


if __name__ == "__main__":
    common.run_main(main)
