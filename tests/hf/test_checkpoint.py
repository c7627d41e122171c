"""What is written is what was read, for every family; folders appear complete or not at all."""

from __future__ import annotations

import dataclasses
import json
import tracemalloc

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gui_owl_jax.agent.errors import CheckpointError, ConfigError
from gui_owl_jax.hf import names, weights
from gui_owl_jax.hf.checkpoint import export_hf, import_hf, load_generation
from gui_owl_jax.hf.config_io import generation_config, published_sampling
from gui_owl_jax.hf.images import ImageConfig
from gui_owl_jax.hf.processor import Processor
from gui_owl_jax.hf.weights import INDEX, SINGLE
from gui_owl_jax.models.config import get_preset
from tests.hf.conftest import random_params

SMALL_SHARDS = 400_000
FAMILIES = ("qwen3_vl", "qwen3_vl_moe", "qwen2_5_vl")


def tensors_of(folder) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for path in sorted(folder.glob("*.safetensors")):
        shard = load_file(path)
        assert not shard.keys() & found.keys()
        found |= shard
    return found


def assert_same_bits(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert (ours[name].dtype, ours[name].shape) == (tensor.dtype, tensor.shape), name
        assert ours[name].tobytes() == tensor.tobytes(), name


def assert_same_tree(ours: dict, theirs: dict) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.fixture
def reference(conformance, tmp_path):
    """A function: family -> folder of its reference checkpoint; of Qwen3-VL-MoE in the hub's layout of experts."""

    def make(family: str):
        source = conformance / "qwen_vl" / family
        if family != "qwen3_vl_moe":
            return source
        folder = tmp_path / family
        folder.mkdir()
        (folder / "config.json").symlink_to(source / "config.json")
        (folder / SINGLE).symlink_to(source / "model_hub_layout.safetensors")
        return folder

    return make


@pytest.mark.parametrize("imported", ["float32", "bfloat16", None])
@pytest.mark.parametrize("limit", [SMALL_SHARDS, 10**9])
@pytest.mark.parametrize("family", FAMILIES)
def test_export_of_an_import_is_the_same_bits(reference, tmp_path, family, imported, limit):
    source = reference(family)
    config, params = import_hf(source, imported)
    assert config.model_type == family
    export_hf(config, params, tmp_path / "out", dtype="bfloat16", max_shard_bytes=limit)
    assert_same_bits(tensors_of(tmp_path / "out"), tensors_of(source))
    assert import_hf(tmp_path / "out")[0] == config


def test_both_layouts_of_experts_are_the_same_model(conformance, reference, tmp_path):
    config, params = import_hf(reference("qwen3_vl_moe"))
    source = conformance / "qwen_vl" / "qwen3_vl_moe"
    again_config, again = import_hf(source)
    assert again_config == config
    assert_same_tree(again, params)
    # Gate and up are the halves of the stored tensor, and their kernels are used as x @ kernel.
    stored = load_file(source / SINGLE)["model.language_model.layers.1.mlp.experts.gate_up_proj"].astype(np.float32)
    gate_up = params["text"]["layers"]["gate_up"]["kernel"][1]
    assert stored.shape == (8, 48, 64) and gate_up.shape == (8, 64, 2, 24)
    np.testing.assert_array_equal(gate_up[:, :, 0], stored[:, :24].swapaxes(1, 2))
    np.testing.assert_array_equal(gate_up[:, :, 1], stored[:, 24:].swapaxes(1, 2))
    export_hf(config, params, tmp_path / "out", dtype="bfloat16", expert_layout="transformers")
    assert_same_bits(tensors_of(tmp_path / "out"), load_file(source / SINGLE))


@pytest.mark.parametrize("width", [64, 128])  # 2 I = D: the fused kernel is square; I = D: the one behind it
def test_a_layout_that_shapes_leave_open_must_be_named(tmp_path, width):
    config = get_preset("nano-moe")
    moe = dataclasses.replace(config.text.moe, width=width)
    config = dataclasses.replace(config, text=dataclasses.replace(config.text, moe=moe))
    params = random_params(config)
    with pytest.raises(ConfigError, match="_proj of shape .* fits both layouts.*expert_layout"):
        export_hf(config, params, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    for layout in names.EXPERT_LAYOUTS:
        export_hf(config, params, tmp_path / layout, expert_layout=layout)
        assert_same_tree(import_hf(tmp_path / layout, expert_layout=layout)[1], params)
        with pytest.raises(CheckpointError, match=rf"{layout}.*_proj has shape .* fits both layouts.*expert_layout"):
            import_hf(tmp_path / layout)
    with pytest.raises(ConfigError, match="expert layout 'sideways' is unknown"):
        import_hf(tmp_path / "hub", expert_layout="sideways")


def test_a_named_layout_is_asked_for(model, tmp_path):
    config, params = model
    export_hf(config, params, tmp_path / "out", expert_layout="transformers")
    if config.text.moe is None:
        assert_same_tree(import_hf(tmp_path / "out", expert_layout="hub")[1], params)
    else:
        with pytest.raises(CheckpointError, match=r"gate_up_proj has shape \(8, 192, 128\), .* \(8, 128, 192\)"):
            import_hf(tmp_path / "out", expert_layout="hub")


def test_float32_fixture_is_the_same_bits(golden, tmp_path):
    source = golden / "qwen3_vl"
    config, params = import_hf(source)
    assert not config.tie_word_embeddings
    export_hf(config, params, tmp_path / "out")
    assert_same_bits(tensors_of(tmp_path / "out"), tensors_of(source))


@pytest.mark.parametrize("limit", [SMALL_SHARDS, 10**9])
def test_round_trip_of_our_own(model, tmp_path, limit):
    config, params = model
    export_hf(config, jax.tree.map(jax.numpy.asarray, params), tmp_path / "out", max_shard_bytes=limit)
    again_config, again = import_hf(tmp_path / "out")
    assert again_config == config
    assert_same_tree(again, params)
    assert (tmp_path / "out" / INDEX).exists() == (limit == SMALL_SHARDS)
    assert (names.HEAD in tensors_of(tmp_path / "out")) != config.tie_word_embeddings


def test_shards_and_index_agree(model, tmp_path):
    config, params = model
    folder = export_hf(config, params, tmp_path / "out", max_shard_bytes=SMALL_SHARDS)
    index = json.loads((folder / INDEX).read_text())
    shards = sorted(folder.glob("*.safetensors"))
    assert [p.name for p in shards] == [
        f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))
    ]
    assert len(shards) > 2
    total = 0
    for path in shards:
        shard = load_file(path)
        assert {name for name, file in index["weight_map"].items() if file == path.name} == shard.keys()
        size = sum(t.nbytes for t in shard.values())
        assert size <= SMALL_SHARDS or len(shard) == 1
        total += size
    assert index["metadata"]["total_size"] == total
    assert index["metadata"]["total_parameters"] == total // 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dtypes(model, tmp_path, dtype):
    config, params = model
    folder = export_hf(config, params, tmp_path / "out", dtype=dtype)
    expected = np.dtype({"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}[dtype])
    assert {t.dtype for t in tensors_of(folder).values()} == {expected}
    content = json.loads((folder / "config.json").read_text())
    stated = {name: content.get("text_config", content).get(name) for name in ("dtype", "torch_dtype")}
    assert dtype in stated.values()
    _, again = import_hf(folder)
    assert_same_tree(again, jax.tree.map(lambda a: a.astype(expected).astype(np.float32), params))
    assert {a.dtype for a in jax.tree.leaves(import_hf(folder, "bfloat16")[1])} == {np.dtype(ml_dtypes.bfloat16)}


def test_half_precision_is_read(model, tmp_path):
    config, params = model
    folder = export_hf(config, params, tmp_path / "out")
    halves = {name: tensor.astype(np.float16) for name, tensor in tensors_of(folder).items()}
    save_file(halves, folder / SINGLE, metadata={"format": "pt"})
    assert_same_tree(import_hf(folder)[1], jax.tree.map(lambda a: a.astype(np.float16).astype(np.float32), params))


def test_plan_keeps_order_and_bound():
    assert weights._plan({"a": 3, "b": 4, "c": 9, "d": 1, "e": 7, "f": 1}, 8) == [
        ["a", "b"],
        ["c"],
        ["d", "e"],
        ["f"],
    ]


def test_memory_is_bounded(model, tmp_path):
    """An export holds a tensor, an import the parameters; beside that only copies of single tensors are alive."""
    config, params = model
    largest = max(int(np.prod(slot.shape)) * 4 for slot in names.slots(config).values())
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    slack = 300_000  # names, index, Python objects
    import_hf(export_hf(config, params, tmp_path / "warm", max_shard_bytes=SMALL_SHARDS))  # imports, caches
    assert total > 2 * (2 * largest + slack)
    tracemalloc.start()
    try:
        export_hf(config, params, tmp_path / "out")  # the bound does not depend on the size of the files
        assert tracemalloc.get_traced_memory()[1] < 2 * largest + slack
        tracemalloc.reset_peak()
        import_hf(tmp_path / "out")
        assert tracemalloc.get_traced_memory()[1] < total + largest + slack
    finally:
        tracemalloc.stop()


def test_both_spellings_are_read(model, tmp_path):
    config, params = model
    folder = export_hf(config, params, tmp_path / "out")
    written = tensors_of(folder)
    nested = {names.canonical(name): tensor for name, tensor in written.items()}
    rootless = {n.replace("model.visual.", "visual.").replace("language_model.", ""): t for n, t in nested.items()}
    assert "visual.patch_embed.proj.weight" in rootless and "model.norm.weight" in rootless
    assert "model.visual.patch_embed.proj.weight" in nested and "model.language_model.norm.weight" in nested
    assert written.keys() == (rootless if config.model_type == "qwen2_5_vl" else nested).keys()
    for tensors in (nested, rootless):
        save_file(tensors, folder / SINGLE)
        assert_same_tree(import_hf(folder)[1], params)


def test_failed_export_leaves_nothing(model, tmp_path):
    config, params = model
    broken = jax.tree.map(np.copy, params)
    broken["text"]["layers"]["down"]["kernel"][-1, 0, 0] = np.nan
    with pytest.raises(CheckpointError, match=r"text/layers/down/kernel .* not finite"):
        export_hf(config, broken, tmp_path / "out", max_shard_bytes=SMALL_SHARDS)
    assert list(tmp_path.iterdir()) == []


def test_values_too_large_for_the_stored_dtype(model, tmp_path):
    config, params = model
    large = params | {"text": params["text"] | {"norm": {"scale": np.full(128, 3.4e38, np.float32)}}}
    export_hf(config, large, tmp_path / "wide")
    with pytest.raises(CheckpointError, match="text/norm/scale .* holds 128 values that are not finite"):
        export_hf(config, large, tmp_path / "narrow", dtype="bfloat16")
    assert [path.name for path in tmp_path.iterdir()] == ["wide"]


def test_existing_folder_is_kept_unless_told(model, tmp_path):
    config, params = model
    folder = export_hf(config, params, tmp_path / "out")
    (folder / "note.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="exists already"):
        export_hf(config, params, folder)
    broken = params | {"text": params["text"] | {"norm": {"scale": np.full(128, np.nan, np.float32)}}}
    with pytest.raises(CheckpointError, match="not finite"):
        export_hf(config, broken, folder, overwrite=True)
    assert (folder / "note.txt").exists()
    export_hf(config, params, folder, overwrite=True)
    assert not (folder / "note.txt").exists()
    assert_same_tree(import_hf(folder)[1], params)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["text"].pop("norm"), "parameter text/norm/scale has shape none"),
        (lambda t: t["text"].update(extra=np.zeros(3)), "parameter text/extra .* no such parameter"),
        (lambda t: t["text"]["norm"].update(scale=np.zeros(3)), r"parameter text/norm/scale has shape \(3,\)"),
    ],
)
def test_parameters_that_do_not_fit_the_config(model, tmp_path, change, message):
    config, params = model
    params = jax.tree.map(lambda a: a, params)
    change(params)
    with pytest.raises(CheckpointError, match=message):
        export_hf(config, params, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_processor_must_belong_to_the_model(model, model_processor, tmp_path):
    config, params = model
    moved = dataclasses.replace(config, image_token_id=5)
    with pytest.raises(ConfigError, match="image_token_id is 5 in the model and 1000"):
        export_hf(moved, params, tmp_path / "out", model_processor)
    images = dataclasses.replace(model_processor.image_config, patch_size=12)
    with pytest.raises(ConfigError, match="patch_size is 1[46] in the model and 12"):
        export_hf(config, params, tmp_path / "out", Processor(model_processor.tokenizer, images))
    other = ImageConfig(family="qwen3_vl" if config.model_type == "qwen2_5_vl" else "qwen2_5_vl")
    with pytest.raises(ConfigError, match="vision.kind is qwen.* in the model and qwen.* in the processor"):
        export_hf(config, params, tmp_path / "out", Processor(model_processor.tokenizer, other))
    with pytest.raises(ConfigError, match="float16"):
        export_hf(config, params, tmp_path / "out", dtype="float16")
    assert list(tmp_path.iterdir()) == []


def test_everything_together(model, model_processor, tmp_path):
    config, params = model
    config = dataclasses.replace(config, image_mean=(0.1, 0.2, 0.3), image_std=(0.4, 0.5, 0.6))
    images = dataclasses.replace(model_processor.image_config, mean=config.image_mean, std=config.image_std)
    folder = export_hf(config, params, tmp_path / "out", Processor(model_processor.tokenizer, images))
    wanted = {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "preprocessor_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert wanted <= {p.name for p in folder.iterdir()} <= wanted | {"video_preprocessor_config.json"}
    assert import_hf(folder)[0] == config
    assert Processor.load(folder).image_config == images
    tokenizer = model_processor.tokenizer
    assert load_generation(folder) == generation_config(tokenizer.im_end, tokenizer.endoftext)
    assert load_generation(folder)["eos_token_id"] == [tokenizer.im_end, tokenizer.endoftext]


def test_generation_settings_are_carried_through(model, model_processor, tmp_path):
    config, params = model
    settings = generation_config(7, 3, published_sampling("8b")) | {"own": [1]}
    folder = export_hf(config, params, tmp_path / "with", model_processor, generation=settings)
    assert load_generation(folder) == settings
    folder = export_hf(config, params, tmp_path / "without", generation=load_generation(folder))
    assert load_generation(folder) == settings
    assert load_generation(export_hf(config, params, tmp_path / "none")) is None


def test_image_statistics_come_from_the_file_of_transformers_5_too(model, model_processor, tmp_path):
    config, params = model
    config = dataclasses.replace(config, image_mean=(0.1, 0.2, 0.3), image_std=(0.4, 0.5, 0.6))
    images = dataclasses.replace(model_processor.image_config, mean=config.image_mean, std=config.image_std)
    folder = export_hf(config, params, tmp_path / "out", Processor(model_processor.tokenizer, images))
    own = folder / "preprocessor_config.json"
    shared = {"processor_class": "Qwen3VLProcessor", "image_processor": json.loads(own.read_text())}
    (folder / "processor_config.json").write_text(json.dumps(shared))
    own.unlink()
    assert import_hf(folder)[0] == config
