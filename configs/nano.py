"""What the three stages of the quickstart share: the nano Qwen3-VL on small virtual screens, on a CPU.

Command: see nano_pretrain.py, nano_sft.py and nano_mrpo.py; launch/quickstart.sh runs all of them in turn.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str = "") -> ConfigDict:
    """The shared part. `arg` is not used."""
    config = base.get_config(arg)
    config.tokenizer = "small"
    config.compute.update({"dtype": "float32", "remat": False, "chunk": 8192})
    config.model.update({"preset": "nano", "vision_window": 64})
    config.image.update({"min_pixels": 1024, "max_pixels": 262144})
    config.context.update({"history_n": 0, "style": "compact"})
    config.data.update({"rows": 32, "token_budget": 144, "patch_budget": 128})
    config.optimizer.update({"name": "muon", "learning_rate": 5e-3, "warmup_steps": 20, "weight_decay_rules": ()})
    config.env.update({"slots": 64})
    config.sampler.update(
        {
            "max_new_tokens": 32,
            "row_buckets": (8, 64),
            "length_buckets": (64, 96, 128, 192, 256),
            "patch_buckets": (64, 128, 256),
        }
    )
    config.rl.update({"tasks": 6, "token_budget": 208, "patch_budget": 128, "row_buckets": (40, 80, 120)})
    config.evaluation.update({"tasks_per_family": 80, "temperature": 1.0})  # the policy as it is trained
    return config
