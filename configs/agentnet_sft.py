"""SFT of a given checkpoint on one recorded desktop trajectory, at the screenshots' own resolution.

Command:  python -m launch.train --config=configs/agentnet_sft.py:FOLDER --workdir=runs/agentnet_sft
          FOLDER holds a checkpoint without tokenizer files (qwen_vl/qwen3_vl, 0.2 M parameters, a vocabulary of 1,024)
          and a recording in AgentNet form (trajectory, 8 steps in a browser, screens of 1280 x 720).
Hardware: 2 CPU cores.
Time:     about 2 minutes.
Result:   the loss falls from 14.8 to 5.4 nats per token in 20 steps (the checkpoint's weights are random numbers).

For a published checkpoint set config.init to its folder (it brings its own tokenizer), context.style to "full", and
raise the budgets: a step of this recording then has 3,900 tokens.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str = "") -> ConfigDict:
    """`arg` is the folder of the checkpoint and the recording."""
    folder = arg or "../shared/conformance"
    config = base.get_config()
    config.init = f"{folder}/qwen_vl/qwen3_vl"
    config.tokenizer = "small"
    config.compute.update({"dtype": "float32", "remat": False, "chunk": 448})
    # 1280 x 720 becomes 1280 x 704, the nearest multiples of 32: 880 tokens.
    config.image.update({"min_pixels": 1024, "max_pixels": 1 << 24})
    config.context.update({"history_n": 0, "style": "compact"})
    config.data.update({"format": "agentnet", "path": f"{folder}/trajectory/s_df0fd37049f470c2.json"})
    config.data.update({"rows": 1, "token_budget": 1792, "patch_budget": 3520})
    config.optimizer.update({"learning_rate": 3e-3, "schedule": "constant", "warmup_steps": 2})
    config.update({"steps": 20, "log_every": 1, "checkpoint_every": 10})
    return config
