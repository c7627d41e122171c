from __future__ import annotations

import copy
import dataclasses
import json

import pytest

from gui_owl_jax.agent.errors import CheckpointError, ConfigError
from gui_owl_jax.hf.config_io import config_from_json, config_to_json, generation_config
from gui_owl_jax.models.config import get_preset

PUBLISHED = {
    "2b": "Qwen3-VL-2B-Instruct",
    "4b": "Qwen3-VL-4B-Instruct",
    "4b-thinking": "Qwen3-VL-4B-Thinking",
    "8b": "Qwen3-VL-8B-Instruct",
    "32b": "Qwen3-VL-32B-Instruct",
}


@pytest.mark.parametrize("preset", PUBLISHED)
def test_published_configs_are_the_presets(conformance, preset):
    content = json.loads((conformance / "qwen_configs" / f"{PUBLISHED[preset]}.json").read_text())["config"]
    config = config_from_json(content)
    assert config == get_preset(preset)
    # Every published field that matters comes back with its value and under its name.
    written = config_to_json(config, "bfloat16")
    ignored = {"bos_token_id", "eos_token_id", "transformers_version"}
    for section in ("text_config", "vision_config"):
        for name, value in content[section].items():
            assert name in ignored or written[section][name] == value, name
    for name, value in content.items():
        assert name in ignored or name.endswith("_config") or written[name] == value, name


def test_both_forms_are_read(conformance):
    newer = json.loads((conformance / "qwen_vl" / "qwen3_vl" / "config.json").read_text())
    assert "rope_parameters" in newer["text_config"]
    config = config_from_json(newer)
    assert (config.text.rope_theta, config.text.mrope_section) == (5_000_000.0, (6, 5, 5))
    assert config_from_json(config_to_json(config)) == config


@pytest.mark.parametrize("preset", ["nano", "2b", "8b"])
def test_round_trip(preset):
    config = get_preset(preset)
    assert config_from_json(json.loads(json.dumps(config_to_json(config)))) == config


@pytest.mark.parametrize("preset", ["nano", "8b"])
def test_transformers_reads_what_is_written(preset, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = get_preset(preset)
    (tmp_path / "config.json").write_text(json.dumps(config_to_json(config, "bfloat16")))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    text, vision = theirs.text_config, theirs.vision_config
    assert (text.hidden_size, text.head_dim, text.vocab_size) == (
        config.text.width,
        config.text.head_width,
        config.text.vocab_size,
    )
    assert text.rope_parameters["rope_theta"] == config.text.rope_theta
    assert tuple(text.rope_parameters["mrope_section"]) == config.text.mrope_section
    assert text.rope_parameters["mrope_interleaved"]
    assert tuple(vision.deepstack_visual_indexes) == config.vision.deepstack_indexes
    assert theirs.tie_word_embeddings == config.tie_word_embeddings
    # And what transformers writes of it is read back as the same model.
    theirs.save_pretrained(tmp_path / "again")
    again = json.loads((tmp_path / "again" / "config.json").read_text())
    assert config_from_json(again) == config


def test_tying_may_stand_in_the_text_config():
    content = config_to_json(get_preset("nano"))
    del content["tie_word_embeddings"]
    assert config_from_json(content).tie_word_embeddings
    del content["text_config"]["tie_word_embeddings"]
    assert not config_from_json(content).tie_word_embeddings


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("model_type",), "qwen2_5_vl", "unknown model_type 'qwen2_5_vl'"),
        (("model_type",), None, "unknown model_type None"),
        (("text_config", "hidden_act"), "gelu", "hidden_act"),
        (("text_config", "attention_bias"), True, "attention_bias"),
        (("vision_config", "hidden_act"), "gelu", "hidden_act"),
        (("text_config", "rope_scaling", "mrope_interleaved"), False, "mrope_interleaved"),
        (("text_config", "rope_scaling", "rope_type"), "yarn", "yarn"),
        (("text_config", "rope_scaling"), None, "malformed"),
        (("text_config", "rope_scaling", "mrope_section"), [1, 2], "malformed"),
        (("text_config",), None, "malformed"),
        (("vision_config", "patch_size"), "big", "malformed"),
        (("vision_config", "out_hidden_size"), 7, "out_width"),
    ],
)
def test_what_is_not_implemented_is_refused(path, value, message):
    content = copy.deepcopy(config_to_json(get_preset("nano")))
    node = content
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    with pytest.raises(CheckpointError, match=message) as error:
        config_from_json(content, "folder/config.json")
    assert "folder/config.json" in str(error.value)


@pytest.mark.parametrize("section", ["text_config", "vision_config"])
def test_missing_fields_are_named(section):
    content = config_to_json(get_preset("nano"))
    del content[section]["hidden_size"]
    with pytest.raises(CheckpointError, match="lacks the field 'hidden_size'"):
        config_from_json(content)


def test_what_the_format_cannot_say_is_not_written():
    nano = get_preset("nano")
    odd = dataclasses.replace(nano, vision=dataclasses.replace(nano.vision, norm_eps=1e-5))
    with pytest.raises(ConfigError, match="vision.norm_eps"):
        config_to_json(odd)


def test_generation_stops_at_the_end_of_the_turn():
    assert generation_config(7, 3)["eos_token_id"] == [7, 3]
