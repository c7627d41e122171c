"""Pre-training of the nano model on grounding: list every element of a screen, and click the one that is named.

Command:  python -m launch.train --config=configs/nano_pretrain.py --workdir=runs/quickstart/pretrain
Hardware: 2 CPU cores; 10 minutes (2.6 updates a second).
Result:   94 to 98 % of 201 clicks on held-out screens hit the named element, 6 to 9 % of the tasks succeed.
"""

from ml_collections import ConfigDict

from configs import nano


def get_config(arg: str = "") -> ConfigDict:
    """`arg` is the folder of the quickstart's run (runs/quickstart by default)."""
    config = nano.get_config()
    config.data.path = f"{arg or 'runs/quickstart'}/data/train"
    config.data.mixture.update({"steps": 0.0, "listing": 0.6, "locate": 2.5, "clicks": 0.6})
    # Names are matched to places all of a sudden, after 700 to 900 updates. With 1,000 updates, fewer examples that
    # ask for places, or fewer of them on screens of two or three elements (data.grounding.KEEPS), the rate can have
    # run down before that: then one click in three finds its element.
    config.steps = 1500
    config.optimizer.update({"learning_rate": 8e-3, "schedule": "linear"})
    return config
