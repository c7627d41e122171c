"""Pre-training of the nano model on grounding: list every element of a screen, and click the one that is named.

Command:  python -m launch.train --config=configs/nano_pretrain.py --workdir=runs/quickstart/pretrain
Hardware: 2 CPU cores.
"""

from ml_collections import ConfigDict

from configs import nano


def get_config(arg: str = "") -> ConfigDict:
    """`arg` is the folder of the quickstart's run (runs/quickstart by default)."""
    config = nano.get_config()
    config.data.path = f"{arg or 'runs/quickstart'}/data/train"
    config.data.mixture.update({"steps": 0.0, "listing": 1.0, "locate": 1.6, "clicks": 0.8})
    config.steps = 1000  # at 700, with the rate run down, names are matched to places in one case of three
    config.optimizer.update({"learning_rate": 8e-3, "schedule": "linear"})
    return config
