"""One turn: a screenshot and an instruction in, one parsed action out.

  python -m launch.act --policy=FOLDER --image=screen.png --family=mobile --instruction="Open the chat with Mia."

FOLDER is a run folder or a Hugging Face folder. The device family may be mobile, desktop or web.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
from absl import flags
from ml_collections import config_flags
from PIL import Image

from gui_owl_jax.agent.actions import to_pixels
from gui_owl_jax.agent.context import ContextConfig, build_messages
from gui_owl_jax.agent.devices import DeviceFamily
from gui_owl_jax.agent.errors import DataError
from gui_owl_jax.agent.parsing import parse_response
from gui_owl_jax.rollout.engine import SamplerConfig, request_seed
from launch import common

CONFIG = config_flags.DEFINE_config_file("config", "configs/base.py", "Context, sampler and precision.")
POLICY = flags.DEFINE_string("policy", None, "A run folder or a Hugging Face folder.", required=True)
IMAGE = flags.DEFINE_string("image", None, "The screenshot.", required=True)
INSTRUCTION = flags.DEFINE_string("instruction", None, "The task.", required=True)
FAMILY = flags.DEFINE_enum_class("family", DeviceFamily.MOBILE, DeviceFamily, "The device family.")


def main(argv: list[str]) -> None:
    """Samples greedily, parses, prints one JSON object; an output that is no action is a ParseError."""
    del argv
    config = CONFIG.value
    common.setup_devices(config)
    try:
        with Image.open(IMAGE.value) as image:
            screen = np.asarray(image.convert("RGB"))
    except (OSError, Image.DecompressionBombError) as error:
        raise DataError(f"--image={IMAGE.value} cannot be read as an image: {error}") from error
    policy = common.load_policy(config, POLICY.value)
    context = common.build(ContextConfig, config.context, "context")
    sampler = common.build(SamplerConfig, {**config.sampler, "temperature": 0.0, "row_buckets": (1,)}, "sampler")
    engine = common.make_engine(policy, sampler, config)

    messages = build_messages(INSTRUCTION.value, FAMILY.value, (), context)
    prompt = policy.processor.encode_prompt(messages, {0: screen})
    (sample,) = engine.generate(policy.params, [prompt], request_seed(config.seed)[None])
    response = policy.processor.decode_response(sample.token_ids)
    parsed = parse_response(response, FAMILY.value)
    action = {k: v for k, v in dataclasses.asdict(parsed.action).items() if v is not None}
    answer: dict[str, Any] = {"conclusion": parsed.conclusion, "action": action}
    if parsed.action.coordinate is not None:
        height, width = screen.shape[:2]
        answer["pixels"] = to_pixels(parsed.action.coordinate, width, height)
    print(json.dumps(answer))


if __name__ == "__main__":
    common.run_main(main)
