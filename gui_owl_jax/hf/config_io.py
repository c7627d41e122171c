"""config.json and generation_config.json of Qwen3-VL checkpoints.

Two forms are read: that of the published checkpoints (`rope_theta` beside `rope_scaling`) and that which transformers 5
writes (`rope_parameters`). The published form is written; transformers 4.57 and 5 both load it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from gui_owl_jax.agent.errors import CheckpointError, ConfigError
from gui_owl_jax.models.config import QwenVLConfig, TextConfig, VisionConfig

MODEL_TYPE = "qwen3_vl"
# What the code takes for granted: reading another value would compute something else without a word.
_TEXT_FIXED = {"hidden_act": "silu", "attention_bias": False}
_VISION_FIXED = {"hidden_act": "gelu_pytorch_tanh"}


def config_from_json(content: Mapping[str, Any], where: str = "config.json") -> QwenVLConfig:
    """Reads the content of config.json.

    Args:
      content: the parsed file.
      where: its name, for errors.

    Raises:
      CheckpointError: the model type is unknown, a field is missing, or a value is one that the models do not
        implement; the message names `where` and the field.
    """
    model_type = content.get("model_type")
    if model_type != MODEL_TYPE:
        raise CheckpointError(f"{where}: unknown model_type {model_type!r}; known: {MODEL_TYPE}")
    try:
        text, vision = content["text_config"], content["vision_config"]
        rope = _rope(text, where)
        _check_fixed(text, _TEXT_FIXED, f"{where}: text_config")
        _check_fixed(vision, _VISION_FIXED, f"{where}: vision_config")
        return QwenVLConfig(
            vision=VisionConfig(
                width=_int(vision, "hidden_size"),
                blocks=_int(vision, "depth"),
                heads=_int(vision, "num_heads"),
                mlp_width=_int(vision, "intermediate_size"),
                out_width=_int(vision, "out_hidden_size"),
                patch_size=_int(vision, "patch_size"),
                merge_size=_int(vision, "spatial_merge_size"),
                temporal_patch_size=_int(vision, "temporal_patch_size"),
                channels=_int({"in_channels": 3, **vision}, "in_channels"),
                num_position_embeddings=_int(vision, "num_position_embeddings"),
                deepstack_indexes=tuple(vision["deepstack_visual_indexes"]),
            ),
            text=TextConfig(
                vocab_size=_int(text, "vocab_size"),
                width=_int(text, "hidden_size"),
                layers=_int(text, "num_hidden_layers"),
                heads=_int(text, "num_attention_heads"),
                kv_heads=_int(text, "num_key_value_heads"),
                head_width=_int(text, "head_dim"),
                mlp_width=_int(text, "intermediate_size"),
                norm_eps=float(text["rms_norm_eps"]),
                rope_theta=float(rope["rope_theta"]),
                mrope_section=tuple(rope["mrope_section"]),
                max_position_embeddings=_int(text, "max_position_embeddings"),
            ),
            tie_word_embeddings=content.get("tie_word_embeddings", text.get("tie_word_embeddings", False)),
            image_token_id=_int(content, "image_token_id"),
            video_token_id=_int(content, "video_token_id"),
            vision_start_token_id=_int(content, "vision_start_token_id"),
            vision_end_token_id=_int(content, "vision_end_token_id"),
        )
    except KeyError as e:
        raise CheckpointError(f"{where} lacks the field {e}") from e
    except (TypeError, ValueError, AttributeError, ConfigError) as e:
        raise CheckpointError(f"{where} has a malformed field: {e}") from e


def config_to_json(config: QwenVLConfig, dtype: str = "float32") -> dict[str, Any]:
    """The content of config.json in the form of the published checkpoints.

    Args:
      config: the model.
      dtype: of the stored weights, "float32" or "bfloat16".

    Raises:
      ConfigError: the config has a value that the format cannot express.
    """
    for field in dataclasses.fields(VisionConfig):
        if field.name in ("norm_eps", "rope_theta") and getattr(config.vision, field.name) != field.default:
            raise ConfigError(f"vision.{field.name} must be {field.default}: config.json has no field for it")
    text, vision = config.text, config.vision
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": MODEL_TYPE,
        "dtype": dtype,
        "text_config": {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "dtype": dtype,
            "head_dim": text.head_width,
            "hidden_act": "silu",
            "hidden_size": text.width,
            "initializer_range": 0.02,
            "intermediate_size": text.mlp_width,
            "max_position_embeddings": text.max_position_embeddings,
            "model_type": "qwen3_vl_text",
            "num_attention_heads": text.heads,
            "num_hidden_layers": text.layers,
            "num_key_value_heads": text.kv_heads,
            "rms_norm_eps": text.norm_eps,
            "rope_scaling": {
                "mrope_interleaved": True,
                "mrope_section": list(text.mrope_section),
                "rope_type": "default",
            },
            "rope_theta": text.rope_theta,
            "tie_word_embeddings": config.tie_word_embeddings,
            "use_cache": True,
            "vocab_size": text.vocab_size,
        },
        "vision_config": {
            "deepstack_visual_indexes": list(vision.deepstack_indexes),
            "depth": vision.blocks,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": vision.width,
            "in_channels": vision.channels,
            "initializer_range": 0.02,
            "intermediate_size": vision.mlp_width,
            "model_type": MODEL_TYPE,
            "num_heads": vision.heads,
            "num_position_embeddings": vision.num_position_embeddings,
            "out_hidden_size": vision.out_width,
            "patch_size": vision.patch_size,
            "spatial_merge_size": vision.merge_size,
            "temporal_patch_size": vision.temporal_patch_size,
        },
        "tie_word_embeddings": config.tie_word_embeddings,
        "image_token_id": config.image_token_id,
        "video_token_id": config.video_token_id,
        "vision_start_token_id": config.vision_start_token_id,
        "vision_end_token_id": config.vision_end_token_id,
    }


def generation_config(im_end: int, endoftext: int) -> dict[str, Any]:
    """The content of generation_config.json: where `generate` stops, and greedy decoding.

    An agent's action should not change from run to run; who wants to sample says so.
    """
    return {
        "bos_token_id": endoftext,
        "pad_token_id": endoftext,
        "eos_token_id": [im_end, endoftext],
        "do_sample": False,
    }


def _int(section: Mapping[str, Any], name: str) -> int:
    value = section[name]
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}, expected a whole number")
    return value


def _rope(text: Mapping[str, Any], where: str) -> dict[str, Any]:
    """rope_theta and mrope_section of either form, checked for what the models implement."""
    if "rope_parameters" in text:
        rope = dict(text["rope_parameters"])
    else:
        rope = {"rope_theta": text["rope_theta"], **text["rope_scaling"]}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default" or not rope.get("mrope_interleaved", False):
        raise CheckpointError(
            f"{where}: text_config needs rope_type 'default' with mrope_interleaved true, found {rope}"
        )
    return rope


def _check_fixed(content: Mapping[str, Any], fixed: Mapping[str, Any], where: str) -> None:
    for name, value in fixed.items():
        if content.get(name, value) != value:
            raise CheckpointError(f"{where}.{name} is {content[name]!r}; only {value!r} is implemented")
