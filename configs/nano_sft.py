"""SFT of the nano model on scripted trajectories.

Command:  python -m launch.train --config=configs/nano_sft.py --workdir=runs/quickstart/sft
Hardware: 2 CPU cores; 2 minutes.
Result:   21 to 31 % of the held-out tasks succeed, sampled at temperature 1.
"""

from ml_collections import ConfigDict

from configs import nano


def get_config(arg: str = "") -> ConfigDict:
    """`arg` is the folder of the quickstart's run (runs/quickstart by default)."""
    run = arg or "runs/quickstart"
    config = nano.get_config()
    config.init = f"{run}/pretrain"
    config.data.path = f"{run}/data/train"
    config.data.keep_failures = True  # the recordings hold slips (launch.flywheel --slips); MRPO removes them again
    config.steps = 240
    config.optimizer.update({"learning_rate": 6e-3, "schedule": "linear"})
    return config
