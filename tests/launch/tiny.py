"""The smallest experiments: a nano model in the coin world. `--config=tests/launch/tiny.py:STAGE,FOLDER`."""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import nano


def get_config(arg: str = "supervised,") -> ConfigDict:
    """FOLDER holds the data (`data`), the tokenizer and the finished SFT run (`sft`) that MRPO starts from."""
    stage, folder = arg.split(",")
    config = nano.get_config()
    config.stage = stage
    config.tokenizer = f"{folder}/tokenizer"
    config.env.update({"world": "tests.launch.coin", "slots": 4})
    config.model.vision_window = 0
    config.context.history_n = 1
    config.sampler.update({"max_new_tokens": 20, "row_buckets": (8,), "length_buckets": (128,), "patch_buckets": (8,)})
    config.data.update({"path": f"{folder}/data", "rows": 4, "token_budget": 128, "patch_budget": 16})
    config.optimizer.update({"schedule": "constant", "warmup_steps": 2})
    config.update({"steps": 40, "log_every": 4, "checkpoint_every": 9})
    if stage == "mrpo":
        config.init = f"{folder}/sft"
        config.update({"steps": 8, "checkpoint_every": 3})
        config.optimizer.learning_rate = 1e-3
        config.selection.group_size = 2
        config.schedule.order = ("mobile",)
        config.rl.update({"tasks": 3, "row_buckets": (8,), "token_budget": 128, "patch_budget": 16})
    return config
