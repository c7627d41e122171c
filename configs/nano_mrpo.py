"""MRPO of the nano model over the three device families.

Command:  python -m launch.train --config=configs/nano_mrpo.py --workdir=runs/quickstart/mrpo
Hardware: 2 CPU cores; 4 minutes (8 seconds an update).
Result:   35 to 45 % of the held-out tasks succeed, sampled at temperature 1.
"""

from ml_collections import ConfigDict

from configs import nano


def get_config(arg: str = "") -> ConfigDict:
    """`arg` is the folder of the quickstart's run (runs/quickstart by default)."""
    run = arg or "runs/quickstart"
    config = nano.get_config()
    config.stage = "mrpo"
    config.init = f"{run}/sft"
    config.steps = 30
    config.checkpoint_every = 10
    config.optimizer.update({"learning_rate": 1e-3, "schedule": "constant", "warmup_steps": 2})
    config.optimizer.learning_rate_rules = (("vision/.*", 0.0),)  # what reads the screen stays as it is
    # Many tasks with small groups: a few tasks with large ones teach their own words and places (measured).
    config.env.slots = 128
    config.rl.update({"tasks": 32, "task_weights": "posterior"})
    config.selection.group_size = 4
    config.advantage.negative_scale = 0.5
    # Stages of one device family each make the nano model forget the others within a stage (measured).
    config.schedule.kind = "mixed"
    return config
