"""Presets against the published configs, and refused values."""

import dataclasses
import json
import math

import jax
import pytest

from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.models.config import QwenVLConfig, get_preset
from gui_owl_jax.models.qwen_vl import abstract_params

QWEN3 = ("2B", "4B", "8B", "32B", "30B-A3B", "235B-A22B")
EDITIONS = [f"Qwen3-VL-{size}-{edition}" for size in QWEN3 for edition in ("Instruct", "Thinking")]
EDITIONS += [f"Qwen2.5-VL-{size}-Instruct" for size in ("3B", "7B", "32B", "72B")]


def preset_name(edition: str) -> str:
    old, size = edition.startswith("Qwen2.5"), edition.split("VL-")[1].lower()
    return ("qwen2.5-" if old else "") + size.removesuffix("-instruct")


@pytest.mark.parametrize("edition", EDITIONS)
def test_preset_equals_published_config(conformance, edition):
    published = json.loads((conformance / "qwen_configs" / f"{edition}.json").read_text())
    hub, own = published["config"], get_preset(preset_name(edition))
    text, vision = hub.get("text_config", hub), hub["vision_config"]
    fields = {
        "vocab_size": "vocab_size",
        "width": "hidden_size",
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "mlp_width": "intermediate_size",
        "norm_eps": "rms_norm_eps",
        "rope_theta": "rope_theta",
        "max_position_embeddings": "max_position_embeddings",
    }
    assert {name: getattr(own.text, name) for name in fields} == {name: text[hub] for name, hub in fields.items()}
    assert own.text.head_width == text.get("head_dim", text["hidden_size"] // text["num_attention_heads"])
    assert own.text.mrope_section == tuple(text["rope_scaling"]["mrope_section"])
    assert own.text.mrope_interleaved == text["rope_scaling"].get("mrope_interleaved", False)
    if own.text.moe:
        moe = (text["num_experts"], text["num_experts_per_tok"], text["moe_intermediate_size"])
        assert (own.text.moe.experts, own.text.moe.per_token, own.text.moe.width) == moe
    fields = {
        "width": "hidden_size",
        "blocks": "depth",
        "heads": "num_heads",
        "mlp_width": "intermediate_size",
        "out_width": "out_hidden_size",
        "patch_size": "patch_size",
        "merge_size": "spatial_merge_size",
        "temporal_patch_size": "temporal_patch_size",
    }
    assert {name: getattr(own.vision, name) for name in fields} == {name: vision[hub] for name, hub in fields.items()}
    assert own.vision.channels == vision.get("in_channels", vision.get("in_chans"))
    assert own.vision.num_position_embeddings == vision.get("num_position_embeddings", 0)
    assert own.vision.deepstack_indexes == tuple(vision.get("deepstack_visual_indexes", ()))
    assert own.vision.full_attention_blocks == tuple(vision.get("fullatt_block_indexes", ()))
    assert own.vision.attention_window == vision.get("window_size", 0)
    assert own.vision.tokens_per_second == vision.get("tokens_per_second", 0)
    for name in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id", "model_type"):
        assert getattr(own, name) == hub[name]
    assert own.tie_word_embeddings == hub["tie_word_embeddings"]
    preprocessor = published["preprocessor_config"]
    assert list(own.image_mean) == preprocessor["image_mean"] and list(own.image_std) == preprocessor["image_std"]

    tree = abstract_params(own)
    count = lambda part: sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(part))  # noqa: E731
    assert count(tree["vision"]) == published["params"]["vision"]
    assert count(tree) == published["params"]["total"]


def test_unknown_preset_names_the_known_ones():
    with pytest.raises(ConfigError, match="7b.*nano"):
        get_preset("7b")


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("text", {"mrope_section": (6, 5, 4)}, "mrope_section"),
        ("text", {"mrope_section": (2, 12, 2)}, "beyond the frequencies"),
        ("text", {"kv_heads": 3}, "kv_heads"),
        ("text", {"width": 96}, "out_width"),
        ("text", {"layers": 0}, "more levels"),
        ("text", {"vocab_size": 1000}, "image_token_id"),
        ("vision", {"heads": 5}, "heads"),
        ("vision", {"num_position_embeddings": 140}, "square"),
        ("vision", {"deepstack_indexes": (1, 0)}, "deepstack_indexes"),
        ("vision", {"deepstack_indexes": (2,)}, "deepstack_indexes"),
        ("vision", {"window": 30}, "window"),
        ("vision", {"channels": 1}, "per channel"),
        ("vision", {"kind": "clip"}, "kind"),
        ("vision", {"attention_window": 64}, "attention_window"),
        ("vision", {"kind": "qwen2_5_vl", "attention_window": 64}, "num_position_embeddings"),
        ("vision", {"full_attention_blocks": (1,)}, "full_attention_blocks"),
    ],
)
def test_values_that_cannot_work_are_refused(part, changes, message):
    nano: QwenVLConfig = get_preset("nano")
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(nano, **{part: dataclasses.replace(getattr(nano, part), **changes)})
