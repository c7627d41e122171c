"""Names, shapes and counts of every published size, without computing a parameter."""

from __future__ import annotations

import json
import math

import pytest

from gui_owl_jax.hf import names
from gui_owl_jax.models.config import get_preset
from gui_owl_jax.models.qwen_vl import abstract_params
from tests.hf.test_config_io import PUBLISHED

# Tensors of one layer with their shapes, written down from the model's description (not from our code). D width,
# N heads, K key and value heads, H head width, F width of the MLP, E experts, I their width.
ATTENTION = {
    "input_layernorm.weight": "D",
    "post_attention_layernorm.weight": "D",
    "self_attn.q_proj.weight": "NH D",
    "self_attn.k_proj.weight": "KH D",
    "self_attn.v_proj.weight": "KH D",
    "self_attn.o_proj.weight": "D NH",
}
QWEN3 = {"self_attn.q_norm.weight": "H", "self_attn.k_norm.weight": "H"}
QWEN2_5 = {"self_attn.q_proj.bias": "NH", "self_attn.k_proj.bias": "KH", "self_attn.v_proj.bias": "KH"}
MLP = {"mlp.gate_proj.weight": "F D", "mlp.up_proj.weight": "F D", "mlp.down_proj.weight": "D F"}
EXPERTS = {"mlp.gate.weight": "E D", "mlp.experts.gate_up_proj": "E D 2I", "mlp.experts.down_proj": "E I D"}


@pytest.fixture(params=PUBLISHED)
def size(request, conformance):
    """The preset's name, its published description, and the stored shapes that we write."""
    content = json.loads((conformance / "qwen_configs" / f"{PUBLISHED[request.param]}.json").read_text())
    slots = names.slots(get_preset(request.param))
    return request.param, content, {name: slot.shape for name, slot in slots.items()}


def test_counts_are_the_published_ones(size):
    preset, content, shapes = size
    published, config = content["params"], get_preset(preset)
    in_tower = {name for name in shapes if "visual." in name}
    assert len(shapes) == published["tensors"]
    assert sum(math.prod(shape) for shape in shapes.values()) == published["total"]
    assert sum(math.prod(shapes[name]) for name in in_tower) == published["vision"]
    assert sum(math.prod(shapes[name]) for name in shapes.keys() - in_tower) == published["language"]
    assert config.tie_word_embeddings == published["tied"] == (names.HEAD not in shapes)
    if config.text.moe is not None:
        idle = 1 - config.text.moe.per_token / config.text.moe.experts
        experts = sum(math.prod(shape) for name, shape in shapes.items() if ".experts." in name)
        assert published["language"] - idle * experts == published["active_language"]


def test_parameters_are_as_many_as_stored(size):
    preset, content, _ = size

    def count(node) -> int:
        return sum(map(count, node.values())) if isinstance(node, dict) else math.prod(node.shape)

    assert count(abstract_params(get_preset(preset))) == content["params"]["total"]


def test_names_and_shapes_of_the_decoder(size):
    preset, content, shapes = size
    text = content["config"].get("text_config", content["config"])
    heads, kv = text["num_attention_heads"], text["num_key_value_heads"]
    width = text["hidden_size"]
    head = text.get("head_dim", width // heads)
    experts, inner = text.get("num_experts", 0), text.get("moe_intermediate_size", 0)
    known = {"D": width, "NH": heads * head, "KH": kv * head, "H": head, "F": text["intermediate_size"]}
    known |= {"E": experts, "I": inner, "2I": 2 * inner}
    older = preset.startswith("qwen2.5")
    layer = ATTENTION | (QWEN2_5 if older else QWEN3) | (EXPERTS if experts else MLP)
    root = "model" if older else "model.language_model"
    expected = {
        f"{root}.layers.{index}.{name}": tuple(known[letter] for letter in letters.split())
        for index in range(text["num_hidden_layers"])
        for name, letters in layer.items()
    }
    expected |= {
        f"{root}.embed_tokens.weight": (text["vocab_size"], width),
        f"{root}.norm.weight": (width,),
    }
    if not content["config"]["tie_word_embeddings"]:
        expected["lm_head.weight"] = (text["vocab_size"], width)
    assert {name: shape for name, shape in shapes.items() if "visual." not in name} == expected


def test_names_and_shapes_of_the_tower(size):
    preset, content, shapes = size
    vision = content["config"]["vision_config"]
    older = preset.startswith("qwen2.5")
    d, f, out = vision["hidden_size"], vision["intermediate_size"], vision["out_hidden_size"]
    side, merged = vision["patch_size"], d * vision["spatial_merge_size"] ** 2
    block = {"norm1.weight": (d,), "norm2.weight": (d,)}
    block |= {"attn.qkv.weight": (3 * d, d), "attn.qkv.bias": (3 * d,)}
    block |= {"attn.proj.weight": (d, d), "attn.proj.bias": (d,)}
    rest: dict[str, tuple[int, ...]] = {"patch_embed.proj.weight": (d, 3, vision["temporal_patch_size"], side, side)}
    if older:
        for name in ("gate_proj", "up_proj"):
            block |= {f"mlp.{name}.weight": (f, d), f"mlp.{name}.bias": (f,)}
        block |= {"mlp.down_proj.weight": (d, f), "mlp.down_proj.bias": (d,)}
        rest |= {"merger.ln_q.weight": (d,), "merger.mlp.0.weight": (merged, merged), "merger.mlp.0.bias": (merged,)}
        rest |= {"merger.mlp.2.weight": (out, merged), "merger.mlp.2.bias": (out,)}
    else:
        block |= {"norm1.bias": (d,), "norm2.bias": (d,)}
        block |= {"mlp.linear_fc1.weight": (f, d), "mlp.linear_fc1.bias": (f,)}
        block |= {"mlp.linear_fc2.weight": (d, f), "mlp.linear_fc2.bias": (d,)}
        rest |= {"patch_embed.proj.bias": (d,), "pos_embed.weight": (vision["num_position_embeddings"], d)}
        levels = [f"deepstack_merger_list.{i}" for i in range(len(vision["deepstack_visual_indexes"]))]
        for name in ("merger", *levels):
            normed = d if name == "merger" else merged  # DeepStack mergers norm behind the shuffle
            rest |= {f"{name}.norm.weight": (normed,), f"{name}.norm.bias": (normed,)}
            rest |= {f"{name}.linear_fc1.weight": (merged, merged), f"{name}.linear_fc1.bias": (merged,)}
            rest |= {f"{name}.linear_fc2.weight": (out, merged), f"{name}.linear_fc2.bias": (out,)}
    root = "visual" if older else "model.visual"
    expected = {f"{root}.{name}": shape for name, shape in rest.items()}
    for index in range(vision["depth"]):
        expected |= {f"{root}.blocks.{index}.{name}": shape for name, shape in block.items()}
    assert {name: shape for name, shape in shapes.items() if "visual." in name} == expected
