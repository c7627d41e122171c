from __future__ import annotations

import copy
import dataclasses
import json

import pytest

from gui_owl_jax.agent.errors import CheckpointError, ConfigError
from gui_owl_jax.hf.config_io import config_from_json, config_to_json, generation_config, published_sampling
from gui_owl_jax.models.config import get_preset

PUBLISHED = {
    **{f"{size.lower()}": f"Qwen3-VL-{size}-Instruct" for size in ("2B", "4B", "8B", "32B", "30B-A3B", "235B-A22B")},
    **{
        f"{size.lower()}-thinking": f"Qwen3-VL-{size}-Thinking"
        for size in ("2B", "4B", "8B", "32B", "30B-A3B", "235B-A22B")
    },
    **{f"qwen2.5-{size.lower()}": f"Qwen2.5-VL-{size}-Instruct" for size in ("3B", "7B", "32B", "72B")},
}
FAMILIES = {"qwen3_vl": "nano", "qwen3_vl_moe": "nano-moe", "qwen2_5_vl": "nano-qwen2.5"}
# Fields that no model of ours has a say in: ids for `generate`, leftovers of training, versions.
IGNORED = {"bos_token_id", "eos_token_id", "transformers_version", "vision_token_id"}
IGNORED |= {"max_window_layers", "sliding_window"}  # without meaning while use_sliding_window is false


def published(conformance, preset: str) -> dict:
    return json.loads((conformance / "qwen_configs" / f"{PUBLISHED[preset]}.json").read_text())


def test_the_list_is_complete(conformance):
    assert {path.stem for path in (conformance / "qwen_configs").glob("*.json")} == set(PUBLISHED.values())


@pytest.mark.parametrize("preset", PUBLISHED)
def test_published_configs_are_the_presets(conformance, preset):
    content = published(conformance, preset)["config"]
    config = config_from_json(content)
    assert config == get_preset(preset)
    # Every published field that matters comes back with its value and under its name.
    written = json.loads(json.dumps(config_to_json(config, "bfloat16")))
    assert config_from_json(written) == config
    for name, value in content.items():
        if isinstance(value, dict):
            for inner, field in value.items():
                assert inner in IGNORED or written[name][inner] == field, f"{name}.{inner}"
        else:
            assert name in IGNORED or written[name] == value, name


@pytest.mark.parametrize("preset", PUBLISHED)
def test_published_sampling(conformance, preset):
    known = published(conformance, preset)["generation_config"] or {}
    known = {name: value for name, value in known.items() if value is not None and name != "transformers_version"}
    sampling = published_sampling(preset)
    assert generation_config(151645, 151643, sampling) == (known or generation_config(151645, 151643))
    assert bool(sampling) == bool(known)
    with pytest.raises(ConfigError, match="no model preset"):
        published_sampling("5b")


@pytest.mark.parametrize("family", FAMILIES)
def test_both_forms_are_read(conformance, family):
    newer = json.loads((conformance / "qwen_vl" / family / "config.json").read_text())
    assert "rope_parameters" in newer["text_config"]
    config = config_from_json(newer)
    assert config.model_type == family
    assert config.text.mrope_section == ((2, 3, 3) if family == "qwen2_5_vl" else (6, 5, 5))
    assert config.text.rope_theta == (1_000_000.0 if family == "qwen2_5_vl" else 5_000_000.0)
    if family == "qwen3_vl_moe":
        assert (config.text.moe.experts, config.text.moe.per_token, config.text.moe.width) == (8, 2, 24)
    if family == "qwen2_5_vl":
        vision = config.vision
        assert (vision.attention_window, vision.full_attention_blocks, vision.tokens_per_second) == (56, (1, 3), 2)
    assert config_from_json(config_to_json(config)) == config


@pytest.mark.parametrize("preset", [*FAMILIES.values(), "2b", "8b"])
def test_round_trip(preset):
    config = get_preset(preset)
    assert config_from_json(json.loads(json.dumps(config_to_json(config)))) == config


def test_every_stored_field_comes_back():
    """Values that differ from all defaults."""
    moe = get_preset("nano-moe")
    text = dataclasses.replace(
        moe.text, moe=dataclasses.replace(moe.text.moe, aux_weight=0.01), norm_eps=1e-5, max_position_embeddings=99
    )
    moe = dataclasses.replace(moe, text=text, tie_word_embeddings=True, video_token_id=7)
    assert config_from_json(config_to_json(moe)) == moe
    older = get_preset("nano-qwen2.5")
    vision = dataclasses.replace(
        older.vision, channels=1, tokens_per_second=2.5, attention_window=84, full_attention_blocks=(0, 2)
    )
    older = dataclasses.replace(older, vision=vision, image_mean=(0.5,), image_std=(0.5,))
    with pytest.raises(CheckpointError, match="image_mean and image_std need one value per channel"):
        config_from_json(config_to_json(older))
    vision = dataclasses.replace(vision, channels=3)
    older = dataclasses.replace(get_preset("nano-qwen2.5"), vision=vision, tie_word_embeddings=False)
    assert config_from_json(config_to_json(older)) == older


@pytest.mark.parametrize("preset", ["nano", "8b", "nano-moe", "235b-a22b", "nano-qwen2.5", "qwen2.5-3b", "qwen2.5-72b"])
def test_transformers_reads_what_is_written(preset, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = get_preset(preset)
    (tmp_path / "config.json").write_text(json.dumps(config_to_json(config, "bfloat16")))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    text, vision = theirs.text_config, theirs.vision_config
    assert (text.hidden_size, text.intermediate_size, text.vocab_size, text.num_hidden_layers) == (
        config.text.width,
        config.text.mlp_width,
        config.text.vocab_size,
        config.text.layers,
    )
    assert text.rope_parameters["rope_theta"] == config.text.rope_theta
    assert text.rope_parameters["rope_type"] == "default"
    assert tuple(text.rope_parameters["mrope_section"]) == config.text.mrope_section
    assert theirs.tie_word_embeddings == config.tie_word_embeddings
    assert (vision.depth, vision.in_channels, vision.patch_size) == (config.vision.blocks, 3, config.vision.patch_size)
    if config.model_type == "qwen2_5_vl":
        assert vision.window_size == config.vision.attention_window
        assert tuple(vision.fullatt_block_indexes) == config.vision.full_attention_blocks
        assert vision.tokens_per_second == config.vision.tokens_per_second
        assert set(text.layer_types) == {"full_attention"}
    else:
        assert text.head_dim == config.text.head_width
        assert text.rope_parameters["mrope_interleaved"]
        assert tuple(vision.deepstack_visual_indexes) == config.vision.deepstack_indexes
    if config.text.moe:
        found = (text.num_experts, text.num_experts_per_tok, text.moe_intermediate_size, text.router_aux_loss_coef)
        assert found == dataclasses.astuple(config.text.moe)
    # And what transformers writes of it is read back as the same model.
    theirs.save_pretrained(tmp_path / "again")
    again = json.loads((tmp_path / "again" / "config.json").read_text())
    assert config_from_json(again) == config


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_vl_moe"])
def test_tying_may_stand_in_the_text_config(family):
    content = config_to_json(dataclasses.replace(get_preset(FAMILIES[family]), tie_word_embeddings=True))
    del content["tie_word_embeddings"]
    assert config_from_json(content).tie_word_embeddings
    del content["text_config"]["tie_word_embeddings"]
    assert not config_from_json(content).tie_word_embeddings


def test_qwen2_5_with_a_text_config():
    """Flat and nested are the same model; tying at either place counts, as transformers has it."""
    flat = config_to_json(get_preset("nano-qwen2.5"))
    inner = {n: v for n, v in flat.items() if n not in ("vision_config", "model_type") and not n.endswith("token_id")}
    nested = {n: v for n, v in flat.items() if n not in inner} | {"text_config": inner}
    assert config_from_json(nested) == config_from_json(flat)
    assert config_from_json(nested | {"tie_word_embeddings": False}).tie_word_embeddings
    inner["tie_word_embeddings"] = False
    assert not config_from_json(nested).tie_word_embeddings


def test_omitted_fields_of_the_qwen2_5_tower():
    config = get_preset("qwen2.5-32b")
    content = config_to_json(config)
    names = ("depth", "num_heads", "patch_size", "spatial_merge_size", "temporal_patch_size", "window_size")
    for name in (*names, "fullatt_block_indexes", "in_channels"):
        del content["vision_config"][name]
    assert config_from_json(content) == config


REFUSED = [
    ("nano", ("model_type",), "llama", "unknown model_type 'llama'"),
    ("nano", ("model_type",), None, "unknown model_type None"),
    ("nano", ("quantization_config",), {"bits": 4}, "quantization_config is .* only None"),
    ("nano", ("text_config", "hidden_act"), "gelu", "text_config: hidden_act is 'gelu'; only 'silu'"),
    ("nano", ("text_config", "attention_bias"), True, "attention_bias"),
    ("nano", ("text_config", "sliding_window"), 128, "sliding_window"),
    ("nano", ("vision_config", "hidden_act"), "gelu", "vision_config: hidden_act"),
    ("nano", ("vision_config", "rope_parameters"), {"rope_theta": 500.0}, "rope_theta is 500.0"),
    ("nano", ("text_config", "rope_scaling", "mrope_interleaved"), False, "mrope_interleaved"),
    ("nano", ("text_config", "rope_scaling", "rope_type"), "yarn", "yarn"),
    ("nano", ("text_config", "rope_scaling", "partial_rotary_factor"), 0.5, "partial_rotary_factor"),
    ("nano", ("text_config", "rope_scaling"), None, "malformed field: rope_scaling"),
    ("nano", ("text_config", "rope_scaling", "mrope_section"), [1, 2], "malformed"),
    ("nano", ("text_config", "rope_scaling", "mrope_section"), 3, "malformed"),
    ("nano", ("text_config",), None, "malformed field: text_config"),
    ("nano", ("text_config", "rms_norm_eps"), "small", "malformed field: rms_norm_eps"),
    ("nano", ("tie_word_embeddings",), "yes", "malformed field: tie_word_embeddings"),
    ("nano", ("vision_config", "patch_size"), "big", "malformed field: patch_size is 'big'"),
    ("nano", ("vision_config", "out_hidden_size"), 7, "out_width"),
    ("nano-moe", ("text_config", "decoder_sparse_step"), 2, "decoder_sparse_step is 2; only 1"),
    ("nano-moe", ("text_config", "mlp_only_layers"), [0], "mlp_only_layers"),
    ("nano-moe", ("text_config", "norm_topk_prob"), False, "norm_topk_prob is False; only True"),
    ("nano-moe", ("text_config", "num_experts_per_tok"), 9, "per_token"),
    ("nano-moe", ("text_config", "num_experts"), 1.5, "malformed field: num_experts is 1.5"),
    ("nano-qwen2.5", ("hidden_act",), "gelu", "hidden_act is 'gelu'"),
    ("nano-qwen2.5", ("use_sliding_window",), True, "use_sliding_window is True; only False"),
    ("nano-qwen2.5", ("layer_types",), ["full_attention", "sliding_attention"], "layer_types"),
    ("nano-qwen2.5", ("head_dim",), 64, "head_dim is 64; only 32"),
    ("nano-qwen2.5", ("vision_config", "hidden_act"), "gelu", "vision_config: hidden_act"),
    ("nano-qwen2.5", ("vision_config", "window_size"), 50, "attention_window"),
    ("nano-qwen2.5", ("rope_scaling", "mrope_interleaved"), True, "mrope_interleaved false"),
    ("nano-qwen2.5", ("rope_scaling", "type"), "dynamic", "dynamic"),
]


@pytest.mark.parametrize(("preset", "path", "value", "message"), REFUSED)
def test_what_is_not_implemented_is_refused(preset, path, value, message):
    content = copy.deepcopy(config_to_json(get_preset(preset)))
    node = content
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    with pytest.raises(CheckpointError, match=message) as error:
        config_from_json(content, "folder/config.json")
    assert "folder/config.json" in str(error.value)


@pytest.mark.parametrize("preset", FAMILIES.values())
def test_missing_fields_are_named(preset):
    content = config_to_json(get_preset(preset))
    optional = {"architectures", "dtype", "torch_dtype", "tie_word_embeddings", "model_type", "router_aux_loss_coef"}
    optional |= {"attention_dropout", "initializer_range", "use_cache", "in_channels", "in_chans", "spatial_patch_size"}
    optional |= {"hidden_act", "attention_bias", "use_sliding_window"}
    optional |= {"decoder_sparse_step", "mlp_only_layers", "norm_topk_prob"}
    if preset == "nano-qwen2.5":
        # The tower's values that published files omit.
        optional |= {"depth", "num_heads", "patch_size", "spatial_merge_size", "temporal_patch_size", "window_size"}
        optional |= {"fullatt_block_indexes"}
    tried = 0
    for section in ("", "text_config", "vision_config"):
        for name in content.get(section, {}) if section else content:
            if name in optional:
                continue
            broken = copy.deepcopy(content)
            del (broken[section] if section else broken)[name]
            with pytest.raises(CheckpointError, match=f"lacks the field '{name}'"):
                config_from_json(broken)
            tried += 1
    assert tried >= 19


@pytest.mark.parametrize(
    ("preset", "section", "change"),
    [
        ("nano", "vision", {"norm_eps": 1e-5}),
        ("nano", "vision", {"rope_theta": 500.0}),
        ("nano", "text", {"qk_norm": False}),
        ("nano", "text", {"mrope_interleaved": False}),
        ("nano", "text", {"qkv_bias": True}),
        ("nano-qwen2.5", "text", {"qk_norm": True}),
        ("nano-qwen2.5", "text", {"head_width": 64, "mrope_section": (12, 10, 10)}),
        ("nano-qwen2.5", "text", {"moe": get_preset("nano-moe").text.moe}),
    ],
)
def test_what_the_format_cannot_say_is_not_written(preset, section, change):
    config = get_preset(preset)
    odd = dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **change)})
    with pytest.raises(ConfigError, match=f"{section}.{next(iter(change))}"):
        config_to_json(odd)


def test_generation_is_greedy_and_stops_at_the_end_of_the_turn():
    assert generation_config(7, 3)["eos_token_id"] == [7, 3]
    assert not generation_config(7, 3)["do_sample"]
    assert generation_config(7, 3, published_sampling("4b"))["temperature"] == 0.7
