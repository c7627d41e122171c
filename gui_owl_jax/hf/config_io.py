"""config.json and generation_config.json of Qwen3-VL, Qwen3-VL-MoE and Qwen2.5-VL checkpoints.

Two forms are read: that of the published checkpoints (`rope_theta` beside `rope_scaling`; with Qwen2.5-VL the text
fields lie at the top level) and that which transformers 5 writes (`rope_parameters`, `num_local_experts`, always a
`text_config`). The published form is written; transformers 4.57 and 5 both load it.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any

from gui_owl_jax.agent.errors import CheckpointError, ConfigError
from gui_owl_jax.hf.files import Section
from gui_owl_jax.models.config import MoEConfig, QwenVLConfig, TextConfig, VisionConfig, get_preset

ARCHITECTURES = {
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
    "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
}
# What the code takes for granted: reading another value would compute something else without a word.
_FIXED = {"quantization_config": None}
_VISION_ROPE_FIXED = {"rope_theta": 10_000.0}
_QWEN3_TEXT_FIXED = {"hidden_act": "silu", "attention_bias": False, "sliding_window": None}
_QWEN3_VISION_FIXED = {"hidden_act": "gelu_pytorch_tanh"}
_MOE_FIXED = {"decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True}
_QWEN2_5_TEXT_FIXED = {"hidden_act": "silu", "attention_bias": True, "use_sliding_window": False}
_QWEN2_5_VISION_FIXED = {"hidden_act": "silu"}
# Published Qwen2.5-VL files leave out values that are the defaults of transformers' own class.
_QWEN2_5_VISION_DEFAULTS = {
    "depth": 32,
    "num_heads": 16,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
}
# How the published models sample: the values known of their generation_config.json. Those of Thinking leave
# temperature and top_p to the reader.
_SAMPLING: Mapping[str, Mapping[str, Any]] = {
    "instruct": {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.0},
    "thinking": {"do_sample": True, "top_k": 20, "repetition_penalty": 1.0},
}


def config_from_json(content: Mapping[str, Any], where: str = "config.json") -> QwenVLConfig:
    """Reads the content of config.json.

    Image statistics are in another file: the result has those that the family was trained with.

    Args:
      content: the parsed file.
      where: its name, for errors.

    Raises:
      CheckpointError: the model type is unknown, a field is missing, or a value is one that the models do not
        implement; the message names `where` and the field.
    """
    model_type = content.get("model_type")
    if model_type not in ARCHITECTURES:
        raise CheckpointError(f"{where}: unknown model_type {model_type!r}; known: {', '.join(ARCHITECTURES)}")
    top = Section(content, where)
    top.check(_FIXED)
    flat = model_type == "qwen2_5_vl" and "text_config" not in content
    text, vision = top if flat else top.section("text_config"), top.section("vision_config")
    try:
        if model_type == "qwen2_5_vl":
            parts: dict[str, Any] = {"vision": _qwen2_5_vision(vision), "text": _qwen2_5_text(text)}
            statistics = get_preset("nano-qwen2.5")
            parts |= {"image_mean": statistics.image_mean, "image_std": statistics.image_std}
            # transformers looks at the top level, and with older files of this family below it.
            tied = top.flag("tie_word_embeddings", False) or text.flag("tie_word_embeddings", False)
        else:
            parts = {"vision": _qwen3_vision(vision), "text": _qwen3_text(text, model_type == "qwen3_vl_moe")}
            tied = top.flag("tie_word_embeddings", text.flag("tie_word_embeddings", False))
        return QwenVLConfig(
            **parts,
            tie_word_embeddings=tied,
            image_token_id=top.whole("image_token_id"),
            video_token_id=top.whole("video_token_id"),
            vision_start_token_id=top.whole("vision_start_token_id"),
            vision_end_token_id=top.whole("vision_end_token_id"),
        )
    except ConfigError as e:
        raise CheckpointError(f"{where} has a malformed field: {e}") from e


def config_to_json(config: QwenVLConfig, dtype: str = "float32") -> dict[str, Any]:
    """The content of config.json in the form of the published checkpoints.

    Args:
      config: the model.
      dtype: of the stored weights, "float32" or "bfloat16".

    Raises:
      ConfigError: the config has a value that the format cannot express.
    """
    _check_expressible(config)
    model_type = config.model_type
    top = {
        "architectures": [ARCHITECTURES[model_type]],
        "model_type": model_type,
        "image_token_id": config.image_token_id,
        "video_token_id": config.video_token_id,
        "vision_start_token_id": config.vision_start_token_id,
        "vision_end_token_id": config.vision_end_token_id,
        "tie_word_embeddings": config.tie_word_embeddings,
    }
    text = config.text
    fields: dict[str, Any] = {
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": text.width,
        "initializer_range": 0.02,
        "intermediate_size": text.mlp_width,
        "max_position_embeddings": text.max_position_embeddings,
        "num_attention_heads": text.heads,
        "num_hidden_layers": text.layers,
        "num_key_value_heads": text.kv_heads,
        "rms_norm_eps": text.norm_eps,
        "rope_theta": text.rope_theta,
        "use_cache": True,
        "vocab_size": text.vocab_size,
    }
    if model_type == "qwen2_5_vl":
        fields |= {
            "rope_scaling": {"type": "mrope", "mrope_section": list(text.mrope_section)},
            "torch_dtype": dtype,
            "use_sliding_window": False,
        }
        return top | fields | {"vision_config": _qwen2_5_vision_json(config.vision)}
    fields |= {
        "attention_bias": False,
        "dtype": dtype,
        "head_dim": text.head_width,
        "model_type": f"{model_type}_text",
        "rope_scaling": {
            "mrope_interleaved": True,
            "mrope_section": list(text.mrope_section),
            "rope_type": "default",
        },
        "tie_word_embeddings": config.tie_word_embeddings,
    }
    if text.moe is not None:
        fields |= _MOE_FIXED | {
            "moe_intermediate_size": text.moe.width,
            "num_experts": text.moe.experts,
            "num_experts_per_tok": text.moe.per_token,
            "router_aux_loss_coef": text.moe.aux_weight,
        }
    vision = _qwen3_vision_json(config.vision) | {"model_type": model_type}
    return top | {"dtype": dtype, "text_config": fields, "vision_config": vision}


def published_sampling(preset: str) -> dict[str, Any]:
    """How a published size samples: fields of generation_config.json, for `generation_config`.

    Args:
      preset: a name of `models.config.get_preset`. Of the Qwen2.5-VL and nano models no settings are known; theirs
        are empty, which means greedy.

    Raises:
      ConfigError: no preset has that name.
    """
    get_preset(preset)
    name = preset.lower()
    if name.startswith(("nano", "qwen2.5")):
        return {}
    return dict(_SAMPLING["thinking" if name.endswith("-thinking") else "instruct"])


def generation_config(
    im_end: int, endoftext: int, sampling: Mapping[str, Any] = types.MappingProxyType({})
) -> dict[str, Any]:
    """The content of generation_config.json: where `generate` stops and how it samples.

    Greedy decoding unless `sampling` says otherwise: an agent's action should not change from run to run.

    Args:
      im_end: id of the token that ends a turn.
      endoftext: id of the token that ends a text; it also pads.
      sampling: further fields, as of `published_sampling`.
    """
    ends = {"bos_token_id": endoftext, "pad_token_id": endoftext, "eos_token_id": [im_end, endoftext]}
    return ends | {"do_sample": False} | dict(sampling)


# ------------------------------------------------------------------------------------------------ reading


def _rope(text: Section, interleaved: bool) -> dict[str, Any]:
    """rope_theta and mrope_section of either form, checked for what the models implement."""
    section = text.section("rope_parameters" if "rope_parameters" in text.content else "rope_scaling")
    rope = {"rope_theta": text.content.get("rope_theta"), **section.content}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "mrope") or bool(rope.get("mrope_interleaved", False)) != interleaved:
        raise CheckpointError(
            f"{section.place} needs rope_type 'default' with mrope_interleaved {str(interleaved).lower()}, "
            f"found {dict(section.content)}"
        )
    section.check({"partial_rotary_factor": 1.0})
    theta = section if "rope_theta" in section.content else text
    axes = section.wholes("mrope_section")
    if len(axes) != 3:
        raise CheckpointError(f"{section.place} has a malformed field: mrope_section {list(axes)} needs three numbers")
    return {"rope_theta": theta.number("rope_theta"), "mrope_section": axes, "mrope_interleaved": interleaved}


def _text_fields(text: Section) -> dict[str, Any]:
    """The fields of TextConfig that all families store alike."""
    return {
        "vocab_size": text.whole("vocab_size"),
        "width": text.whole("hidden_size"),
        "layers": text.whole("num_hidden_layers"),
        "heads": text.whole("num_attention_heads"),
        "kv_heads": text.whole("num_key_value_heads"),
        "mlp_width": text.whole("intermediate_size"),
        "norm_eps": text.number("rms_norm_eps"),
        "max_position_embeddings": text.whole("max_position_embeddings"),
    }


def _vision_fields(vision: Section) -> dict[str, Any]:
    """The fields of VisionConfig that all families store alike."""
    if vision.content.get("rope_parameters") is not None:
        vision.section("rope_parameters").check(_VISION_ROPE_FIXED)
    return {
        "width": vision.whole("hidden_size"),
        "blocks": vision.whole("depth"),
        "heads": vision.whole("num_heads"),
        "mlp_width": vision.whole("intermediate_size"),
        "out_width": vision.whole("out_hidden_size"),
        "patch_size": vision.whole("patch_size"),
        "merge_size": vision.whole("spatial_merge_size"),
        "temporal_patch_size": vision.whole("temporal_patch_size"),
    }


def _qwen3_text(text: Section, with_experts: bool) -> TextConfig:
    text.check(_QWEN3_TEXT_FIXED)
    moe = None
    if with_experts:
        text.check(_MOE_FIXED)
        experts = "num_local_experts" if "num_local_experts" in text.content else "num_experts"
        moe = MoEConfig(
            experts=text.whole(experts),
            per_token=text.whole("num_experts_per_tok"),
            width=text.whole("moe_intermediate_size"),
            aux_weight=text.number("router_aux_loss_coef", 0.001),
        )
    return TextConfig(**_text_fields(text), **_rope(text, interleaved=True), head_width=text.whole("head_dim"), moe=moe)


def _qwen3_vision(vision: Section) -> VisionConfig:
    vision.check(_QWEN3_VISION_FIXED)
    return VisionConfig(
        **_vision_fields(vision),
        channels=vision.whole("in_channels", 3),
        num_position_embeddings=vision.whole("num_position_embeddings"),
        deepstack_indexes=vision.wholes("deepstack_visual_indexes"),
    )


def _qwen2_5_text(text: Section) -> TextConfig:
    text.check(_QWEN2_5_TEXT_FIXED)
    if set(text.content.get("layer_types") or ()) - {"full_attention"}:
        raise CheckpointError(f"{text.place}: layer_types: only 'full_attention' is implemented")
    fields = _text_fields(text)
    head_width = fields["width"] // max(fields["heads"], 1)
    text.check({"head_dim": head_width})
    return TextConfig(**fields, **_rope(text, interleaved=False), head_width=head_width, qk_norm=False, qkv_bias=True)


def _qwen2_5_vision(vision: Section) -> VisionConfig:
    vision.check(_QWEN2_5_VISION_FIXED)
    vision = dataclasses.replace(vision, content=_QWEN2_5_VISION_DEFAULTS | dict(vision.content))
    return VisionConfig(
        **_vision_fields(vision),
        channels=vision.whole("in_channels", vision.whole("in_chans", 3)),
        num_position_embeddings=0,
        kind="qwen2_5_vl",
        attention_window=vision.whole("window_size"),
        full_attention_blocks=vision.wholes("fullatt_block_indexes"),
        tokens_per_second=vision.number("tokens_per_second"),
    )


# ------------------------------------------------------------------------------------------------ writing


def _check_expressible(config: QwenVLConfig) -> None:
    """Raises ConfigError for a value that config.json has no field for, because the family fixes it."""
    for field in dataclasses.fields(VisionConfig):
        if field.name in ("norm_eps", "rope_theta") and getattr(config.vision, field.name) != field.default:
            raise ConfigError(f"vision.{field.name} must be {field.default}: config.json has no field for it")
    text, older = config.text, config.model_type == "qwen2_5_vl"
    fixed: dict[str, Any] = {"mrope_interleaved": not older, "qk_norm": not older, "qkv_bias": older}
    if older:
        fixed |= {"head_width": text.width // text.heads, "moe": None}
    for name, value in fixed.items():
        if getattr(text, name) != value:
            raise ConfigError(f"text.{name} must be {value}: config.json of {config.model_type} has no field for it")


def _vision_json(vision: VisionConfig) -> dict[str, Any]:
    """The fields of vision_config that all families store alike."""
    return {
        "depth": vision.blocks,
        "hidden_size": vision.width,
        "in_channels": vision.channels,
        "initializer_range": 0.02,
        "intermediate_size": vision.mlp_width,
        "num_heads": vision.heads,
        "out_hidden_size": vision.out_width,
        "patch_size": vision.patch_size,
        "spatial_merge_size": vision.merge_size,
        "temporal_patch_size": vision.temporal_patch_size,
    }


def _qwen3_vision_json(vision: VisionConfig) -> dict[str, Any]:
    return (
        _vision_json(vision)
        | _QWEN3_VISION_FIXED
        | {
            "deepstack_visual_indexes": list(vision.deepstack_indexes),
            "num_position_embeddings": vision.num_position_embeddings,
        }
    )


def _qwen2_5_vision_json(vision: VisionConfig) -> dict[str, Any]:
    pace = vision.tokens_per_second
    return (
        _vision_json(vision)
        | _QWEN2_5_VISION_FIXED
        | {
            "fullatt_block_indexes": list(vision.full_attention_blocks),
            "in_chans": vision.channels,  # what the published files call it; transformers reads in_channels
            "spatial_patch_size": vision.patch_size,
            # transformers takes whole numbers only
            "tokens_per_second": int(pace) if pace == int(pace) else pace,
            "window_size": vision.attention_window,
        }
    )
