"""MRPO of the nano model over the three device families.

Command:  python -m launch.train --config=configs/nano_mrpo.py --workdir=runs/quickstart/mrpo
Hardware: 2 CPU cores.
"""

from ml_collections import ConfigDict

from configs import nano


def get_config(arg: str = "") -> ConfigDict:
    """`arg` is the folder of the quickstart's run (runs/quickstart by default)."""
    run = arg or "runs/quickstart"
    config = nano.get_config()
    config.stage = "mrpo"
    config.init = f"{run}/sft"
    config.steps = 80
    config.checkpoint_every = 20
    config.optimizer.update({"learning_rate": 1e-3, "schedule": "constant", "warmup_steps": 2})
    return config
