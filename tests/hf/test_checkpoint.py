from __future__ import annotations

import dataclasses
import json
import pickle
import re
import tracemalloc
import zipfile

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gui_owl_jax.agent.errors import CheckpointError, ConfigError
from gui_owl_jax.hf import checkpoint, names
from gui_owl_jax.hf.checkpoint import INDEX, SINGLE, export_hf, import_hf
from gui_owl_jax.hf.images import ImageConfig
from gui_owl_jax.hf.processor import Processor

SMALL_SHARDS = 400_000


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


@pytest.mark.parametrize("imported", ["float32", "bfloat16", None])
@pytest.mark.parametrize("limit", [SMALL_SHARDS, 10**9])
def test_export_of_an_import_is_the_same_bits(conformance, tmp_path, imported, limit):
    source = conformance / "qwen_vl" / "qwen3_vl"
    config, params = import_hf(source, imported)
    export_hf(config, params, tmp_path / "out", dtype="bfloat16", max_shard_bytes=limit)
    assert_same_bits(tensors_of(tmp_path / "out"), tensors_of(source))
    assert import_hf(tmp_path / "out")[0] == config


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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dtypes(model, tmp_path, dtype):
    config, params = model
    folder = export_hf(config, params, tmp_path / "out", dtype=dtype)
    expected = np.dtype({"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}[dtype])
    assert {t.dtype for t in tensors_of(folder).values()} == {expected}
    content = json.loads((folder / "config.json").read_text())
    assert content["dtype"] == content["text_config"]["dtype"] == dtype
    _, again = import_hf(folder)
    assert_same_tree(again, jax.tree.map(lambda a: a.astype(expected).astype(np.float32), params))
    assert {a.dtype for a in jax.tree.leaves(import_hf(folder, "bfloat16")[1])} == {np.dtype(ml_dtypes.bfloat16)}


def test_plan_keeps_order_and_bound():
    assert checkpoint._plan({"a": 3, "b": 4, "c": 9, "d": 1, "e": 7, "f": 1}, 8) == [
        ["a", "b"],
        ["c"],
        ["d", "e"],
        ["f"],
    ]


def test_memory_is_bounded(model, tmp_path):
    """An export holds a shard, an import the parameters; beside that only copies of single tensors are alive."""
    config, params = model
    largest = max(int(np.prod(slot.shape)) * 4 for slot in names.slots(config).values())
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    slack = 300_000  # names, index, Python objects
    import_hf(export_hf(config, params, tmp_path / "warm", max_shard_bytes=SMALL_SHARDS))  # imports, caches
    assert total > 2 * (SMALL_SHARDS + 3 * largest + slack)
    tracemalloc.start()
    try:
        export_hf(config, params, tmp_path / "out", max_shard_bytes=SMALL_SHARDS)
        assert tracemalloc.get_traced_memory()[1] < SMALL_SHARDS + 3 * largest + slack
        tracemalloc.reset_peak()
        import_hf(tmp_path / "out")
        assert tracemalloc.get_traced_memory()[1] < total + 3 * largest + slack
    finally:
        tracemalloc.stop()


@pytest.fixture
def exported(model, tmp_path):
    config, params = model
    return export_hf(config, params, tmp_path / "model", max_shard_bytes=SMALL_SHARDS)


def edit_shard(folder, change, holding: str | None = None) -> None:
    """Rewrites the shard that holds a tensor (default NORM) after `change` has edited the shard's tensors."""
    path = folder / json.loads((folder / INDEX).read_text())["weight_map"][holding or NORM]
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] = {n: f for n, f in index["weight_map"].items() if f != path.name} | dict.fromkeys(
        tensors, path.name
    )
    (folder / INDEX).write_text(json.dumps(index))


NORM = "model.language_model.layers.2.post_attention_layernorm.weight"


def test_missing_shard(exported):
    path = sorted(exported.glob("*.safetensors"))[1]
    path.unlink()
    with pytest.raises(CheckpointError, match=f"{path.name} is missing"):
        import_hf(exported)


@pytest.mark.parametrize("keep", [0, 5, 100, 0.5, -1])
def test_truncated_shard(exported, keep):
    path = sorted(exported.glob("*.safetensors"))[1]
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep) if isinstance(keep, float) else keep])
    with pytest.raises(CheckpointError, match=f"{path.name} is cut short"):
        import_hf(exported)


def test_wrong_shape(exported):
    edit_shard(exported, lambda t: t.update({NORM: t[NORM][:-1].copy()}))
    with pytest.raises(CheckpointError, match=re.escape(NORM) + r" has shape \(127,\), .* \(128,\)"):
        import_hf(exported)


def test_missing_tensor(exported):
    edit_shard(exported, lambda t: t.pop(NORM))
    with pytest.raises(CheckpointError, match="1 tensors are missing: " + re.escape(NORM)):
        import_hf(exported)


def test_unexpected_tensor(exported):
    edit_shard(
        exported, lambda t: t.update({"model.language_model.layers.9.mlp.up_proj.weight": np.zeros(3, np.float32)})
    )
    with pytest.raises(CheckpointError, match=r"1 tensors are unexpected: .*layers\.9"):
        import_hf(exported)


def test_tensor_stored_under_two_names(exported):
    old = NORM.replace("model.language_model.", "model.")
    edit_shard(exported, lambda t: t.update({old: t[NORM]}))
    with pytest.raises(CheckpointError, match="stored twice"):
        import_hf(exported)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite(exported, value):
    def change(tensors):
        tensors[NORM] = tensors[NORM].copy()
        tensors[NORM][7] = value

    edit_shard(exported, change)
    with pytest.raises(CheckpointError, match=re.escape(NORM) + " holds 1 values that are not finite"):
        import_hf(exported)


def test_integer_weights(exported):
    edit_shard(exported, lambda t: t.update({NORM: np.ones(128, np.int32)}))
    with pytest.raises(CheckpointError, match="dtype I32"):
        import_hf(exported)


def test_mixed_dtypes_need_a_choice(exported):
    edit_shard(exported, lambda t: t.update({NORM: t[NORM].astype(ml_dtypes.bfloat16)}))
    with pytest.raises(CheckpointError, match="name a dtype"):
        import_hf(exported, None)
    import_hf(exported, "float32")


def test_index_that_lies(exported):
    index = json.loads((exported / INDEX).read_text())
    shards = sorted(set(index["weight_map"].values()))
    index["weight_map"][NORM] = shards[0]
    (exported / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="disagree about " + re.escape(NORM)):
        import_hf(exported)
    index["weight_map"][NORM] = "../elsewhere.safetensors"
    (exported / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="weight_map"):
        import_hf(exported)


def test_pickles_are_never_read(exported):
    path = sorted(exported.glob("*.safetensors"))[0]
    path.write_bytes(pickle.dumps({"a": np.zeros(3)}, protocol=2))
    with pytest.raises(CheckpointError, match=f"{path.name} is a pickle"):
        import_hf(exported)
    with zipfile.ZipFile(path, "w") as archive:  # what torch.save writes today
        archive.writestr("archive/data.pkl", b"x")
    with pytest.raises(CheckpointError, match=f"{path.name} is a pickle"):
        import_hf(exported)
    for file in [*exported.glob("*.safetensors"), exported / INDEX]:
        file.unlink()
    (exported / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    with pytest.raises(CheckpointError, match=r"pytorch_model.bin \(pickle\)"):
        import_hf(exported)


@pytest.mark.parametrize("missing", ["config.json", "everything", "weights"])
def test_incomplete_folders(exported, missing, tmp_path):
    if missing == "everything":
        exported = tmp_path / "nowhere"
    elif missing == "weights":
        for file in [*exported.glob("*.safetensors"), exported / INDEX]:
            file.unlink()
    else:
        (exported / missing).unlink()
    with pytest.raises(CheckpointError, match=SINGLE if missing == "weights" else "config.json is missing"):
        import_hf(exported)


def test_unknown_model_type(exported):
    content = json.loads((exported / "config.json").read_text()) | {"model_type": "llama"}
    (exported / "config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="unknown model_type 'llama'"):
        import_hf(exported)


def test_older_prefixes_are_read(exported, model):
    tensors = {
        n.replace("model.visual.", "visual.").replace("language_model.", ""): t for n, t in tensors_of(exported).items()
    }
    assert "visual.pos_embed.weight" in tensors and "model.norm.weight" in tensors
    for file in [*exported.glob("*.safetensors"), exported / INDEX]:
        file.unlink()
    save_file(tensors, exported / SINGLE)
    assert_same_tree(import_hf(exported)[1], model[1])


def test_head_is_redundant_when_tied_and_required_when_not(exported, model):
    config, params = model
    embedding = params["text"]["embed"]["embedding"]
    if config.tie_word_embeddings:
        edit_shard(exported, lambda t: t.update({names.HEAD: embedding}))
        assert_same_tree(import_hf(exported)[1], params)
        edit_shard(exported, lambda t: t.update({names.HEAD: embedding + 1}))
        with pytest.raises(CheckpointError, match="differs from the embedding"):
            import_hf(exported)
    else:
        edit_shard(exported, lambda t: t.pop(names.HEAD), names.HEAD)
        with pytest.raises(CheckpointError, match="missing: lm_head.weight"):
            import_hf(exported)


def test_failed_export_leaves_nothing(model, tmp_path):
    config, params = model
    broken = jax.tree.map(np.copy, params)
    broken["text"]["layers"]["down"]["kernel"][-1, 0, 0] = np.nan
    with pytest.raises(CheckpointError, match=r"text/layers/down/kernel .* not finite"):
        export_hf(config, broken, tmp_path / "out", max_shard_bytes=SMALL_SHARDS)
    assert list(tmp_path.iterdir()) == []


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


def test_processor_must_belong_to_the_model(model, processor, tmp_path):
    config, params = model
    moved = dataclasses.replace(config, image_token_id=5)
    with pytest.raises(ConfigError, match="image_token_id is 5 in the model and 1000"):
        export_hf(moved, params, tmp_path / "out", processor)
    other = Processor(processor.tokenizer, ImageConfig(patch_size=14))
    with pytest.raises(ConfigError, match="patch_size is 16 in the model and 14"):
        export_hf(config, params, tmp_path / "out", other)
    with pytest.raises(ConfigError, match="float16"):
        export_hf(config, params, tmp_path / "out", dtype="float16")


def test_everything_together(model, processor, tmp_path):
    config, params = model
    config = dataclasses.replace(config, image_mean=(0.1, 0.2, 0.3), image_std=(0.4, 0.5, 0.6))
    images = dataclasses.replace(processor.image_config, mean=config.image_mean, std=config.image_std)
    folder = export_hf(config, params, tmp_path / "out", Processor(processor.tokenizer, images))
    assert {p.name for p in folder.iterdir()} == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "preprocessor_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "video_preprocessor_config.json",
    }
    assert import_hf(folder)[0] == config
    assert Processor.load(folder).image_config == images
    ends = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    assert ends == [processor.tokenizer.im_end, processor.tokenizer.endoftext]
