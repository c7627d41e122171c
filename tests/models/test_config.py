"""Presets against the published configs, and refused values."""

import dataclasses
import json
import math

import jax
import pytest

from gui_owl_jax.agent.errors import ConfigError
from gui_owl_jax.models.config import QwenVLConfig, get_preset
from gui_owl_jax.models.qwen_vl import abstract_params

SIZES = ("2B", "4B", "8B", "32B")


@pytest.mark.parametrize("edition", ["Instruct", "Thinking"])
@pytest.mark.parametrize("size", SIZES)
def test_preset_equals_published_config(conformance, size, edition):
    published = json.loads((conformance / "qwen_configs" / f"Qwen3-VL-{size}-{edition}.json").read_text())
    hub, own = published["config"], get_preset(size.lower() + ("-thinking" if edition == "Thinking" else ""))
    text, vision = hub["text_config"], hub["vision_config"]
    assert dataclasses.asdict(own.text) == {
        "vocab_size": text["vocab_size"],
        "width": text["hidden_size"],
        "layers": text["num_hidden_layers"],
        "heads": text["num_attention_heads"],
        "kv_heads": text["num_key_value_heads"],
        "head_width": text["head_dim"],
        "mlp_width": text["intermediate_size"],
        "norm_eps": text["rms_norm_eps"],
        "rope_theta": text["rope_theta"],
        "mrope_section": tuple(text["rope_scaling"]["mrope_section"]),
        "max_position_embeddings": text["max_position_embeddings"],
    }
    expected = {
        "width": vision["hidden_size"],
        "blocks": vision["depth"],
        "heads": vision["num_heads"],
        "mlp_width": vision["intermediate_size"],
        "out_width": vision["out_hidden_size"],
        "patch_size": vision["patch_size"],
        "merge_size": vision["spatial_merge_size"],
        "temporal_patch_size": vision["temporal_patch_size"],
        "channels": vision["in_channels"],
        "num_position_embeddings": vision["num_position_embeddings"],
        "deepstack_indexes": tuple(vision["deepstack_visual_indexes"]),
    }
    assert {name: getattr(own.vision, name) for name in expected} == expected
    for name in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"):
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
    ],
)
def test_values_that_cannot_work_are_refused(part, changes, message):
    nano: QwenVLConfig = get_preset("nano")
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(nano, **{part: dataclasses.replace(getattr(nano, part), **changes)})
