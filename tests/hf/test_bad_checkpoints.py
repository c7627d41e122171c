"""Every damage gets one clear error, whichever way the checkpoint is read, and nothing is written."""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys
import zipfile

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gui_owl_jax import sharding
from gui_owl_jax.agent.errors import CheckpointError, ConfigError
from gui_owl_jax.hf import names
from gui_owl_jax.hf.checkpoint import export_hf, import_hf, load_generation
from gui_owl_jax.hf.weights import INDEX, SINGLE
from tests.hf.test_checkpoint import SMALL_SHARDS, assert_same_bits, assert_same_tree, tensors_of

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def exported(model, tmp_path):
    config, params = model
    return export_hf(config, params, tmp_path / "model", max_shard_bytes=SMALL_SHARDS)


@pytest.fixture(params=["on the host", "sharded"])
def read(request, model):
    """`import_hf` to the host or over a mesh."""
    if request.param == "on the host":
        return import_hf
    mesh = sharding.make_mesh(sharding.MeshConfig(fsdp=2, tensor=2, expert=2))
    places = sharding.param_shardings(model[0], mesh)
    return lambda folder, dtype=np.float32: import_hf(folder, dtype, places)


def norm_of(folder) -> str:
    """The name of a small tensor of a text layer, in the family's spelling."""
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    (name,) = (n for n in weight_map if n.endswith("layers.2.post_attention_layernorm.weight"))
    return name


def edit_shard(folder, change, holding: str) -> None:
    """Rewrites the shard that holds a tensor after `change` has edited the shard's tensors."""
    path = folder / json.loads((folder / INDEX).read_text())["weight_map"][holding]
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] = {n: f for n, f in index["weight_map"].items() if f != path.name} | dict.fromkeys(
        tensors, path.name
    )
    (folder / INDEX).write_text(json.dumps(index))


def remove_weights(folder) -> None:
    for file in [*folder.glob("*.safetensors"), folder / INDEX]:
        file.unlink()


def test_missing_shard(exported, read):
    path = sorted(exported.glob("*.safetensors"))[1]
    path.unlink()
    with pytest.raises(CheckpointError, match=f"{path.name} is missing"):
        read(exported)


@pytest.mark.parametrize("keep", [0, 5, 100, 0.5, -1])
def test_truncated_shard(exported, read, keep):
    path = sorted(exported.glob("*.safetensors"))[1]
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep) if isinstance(keep, float) else keep])
    with pytest.raises(CheckpointError, match=f"{path.name} is cut short"):
        read(exported)


def test_wrong_shape(exported, read):
    norm = norm_of(exported)
    edit_shard(exported, lambda t: t.update({norm: t[norm][:-1].copy()}), norm)
    with pytest.raises(CheckpointError, match=re.escape(norm) + r" has shape \(127,\), .* \(128,\)"):
        read(exported)


def test_experts_of_the_wrong_shape(exported, model, read):
    if model[0].text.moe is None:
        pytest.skip("a model without experts")
    name = "model.language_model.layers.1.mlp.experts.down_proj"
    edit_shard(exported, lambda t: t.update({name: t[name][:, :-1].copy()}), name)
    with pytest.raises(CheckpointError, match=r"\(8, 95, 128\), .* \(8, 96, 128\) or \(8, 128, 96\)"):
        read(exported)


def test_missing_tensor(exported, read):
    norm = norm_of(exported)
    edit_shard(exported, lambda t: t.pop(norm), norm)
    with pytest.raises(CheckpointError, match="1 tensors are missing: .*" + re.escape(names.canonical(norm))):
        read(exported)


def test_unexpected_tensor(exported, read):
    norm = norm_of(exported)
    extra = norm.replace("layers.2", "layers.9")
    edit_shard(exported, lambda t: t.update({extra: np.zeros(3, np.float32)}), norm)
    with pytest.raises(CheckpointError, match=r"1 tensors are unexpected: " + re.escape(extra)):
        read(exported)


def test_tensor_stored_under_two_names(exported, read):
    norm = norm_of(exported)
    new = names.canonical(norm)
    other = new if new != norm else norm.replace("model.language_model.", "model.")
    edit_shard(exported, lambda t: t.update({other: t[norm]}), norm)
    with pytest.raises(CheckpointError, match="stored twice"):
        read(exported)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite(exported, read, value):
    norm = norm_of(exported)

    def change(tensors):
        tensors[norm] = tensors[norm].copy()
        tensors[norm][7] = value

    edit_shard(exported, change, norm)
    with pytest.raises(CheckpointError, match=re.escape(norm) + " holds 1 values that are not finite"):
        read(exported)


def test_integer_weights(exported, read):
    norm = norm_of(exported)
    edit_shard(exported, lambda t: t.update({norm: np.ones(128, np.int32)}), norm)
    with pytest.raises(CheckpointError, match="dtype I32"):
        read(exported)


def test_mixed_dtypes_need_a_choice(exported, read):
    norm = norm_of(exported)
    edit_shard(exported, lambda t: t.update({norm: t[norm].astype(ml_dtypes.bfloat16)}), norm)
    with pytest.raises(CheckpointError, match="name a dtype"):
        read(exported, None)
    read(exported, "float32")


def test_index_that_lies(exported, read):
    norm = norm_of(exported)
    index = json.loads((exported / INDEX).read_text())
    shards = sorted(set(index["weight_map"].values()))
    index["weight_map"][norm] = shards[0]
    (exported / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="disagree about " + re.escape(norm)):
        read(exported)
    index["weight_map"][norm] = "../elsewhere.safetensors"
    (exported / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="weight_map"):
        read(exported)


def test_pickles_are_never_read(exported, read):
    path = sorted(exported.glob("*.safetensors"))[0]
    path.write_bytes(pickle.dumps({"a": np.zeros(3)}, protocol=2))
    with pytest.raises(CheckpointError, match=f"{path.name} is a pickle"):
        read(exported)
    with zipfile.ZipFile(path, "w") as archive:  # what torch.save writes today
        archive.writestr("archive/data.pkl", b"x")
    with pytest.raises(CheckpointError, match=f"{path.name} is a pickle"):
        read(exported)
    remove_weights(exported)
    (exported / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    with pytest.raises(CheckpointError, match=r"pytorch_model.bin \(pickle\)"):
        read(exported)


@pytest.mark.parametrize("missing", ["config.json", "everything", "weights"])
def test_incomplete_folders(exported, read, missing, tmp_path):
    if missing == "everything":
        exported = tmp_path / "nowhere"
    elif missing == "weights":
        remove_weights(exported)
    else:
        (exported / missing).unlink()
    with pytest.raises(CheckpointError, match=SINGLE if missing == "weights" else "config.json is missing"):
        read(exported)


def test_unknown_model_type(exported, read):
    content = json.loads((exported / "config.json").read_text()) | {"model_type": "llama"}
    (exported / "config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="unknown model_type 'llama'"):
        read(exported)


def test_config_of_another_family(exported, model, read):
    """The tensors of one family under the config of another."""
    content = json.loads((exported / "config.json").read_text())
    if model[0].model_type == "qwen2_5_vl":
        content["model_type"] = "qwen3_vl"
        expected = "lacks the field 'text_config'"
    elif model[0].text.moe is None:
        experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
        content |= {"model_type": "qwen3_vl_moe", "text_config": content["text_config"] | experts}
        expected = "tensors are missing: .*mlp.experts.down_proj"
    else:
        content["model_type"] = "qwen3_vl"
        expected = "tensors are missing: .*mlp.down_proj"
    (exported / "config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=expected):
        read(exported)


def test_head_is_redundant_when_tied_and_required_when_not(exported, model, read):
    config, params = model
    embedding = params["text"]["embed"]["embedding"]
    if config.tie_word_embeddings:
        norm = norm_of(exported)
        edit_shard(exported, lambda t: t.update({names.HEAD: embedding}), norm)
        assert_same_tree(read(exported)[1], params)
        edit_shard(exported, lambda t: t.update({names.HEAD: embedding + 1}), norm)
        with pytest.raises(CheckpointError, match="differs from the embedding"):
            read(exported)
        edit_shard(exported, lambda t: t.update({names.HEAD: embedding[1:]}), norm)
        with pytest.raises(CheckpointError, match="differs from the embedding"):
            read(exported)
    else:
        edit_shard(exported, lambda t: t.pop(names.HEAD), names.HEAD)
        with pytest.raises(CheckpointError, match="missing: lm_head.weight"):
            read(exported)


def test_unusable_arguments(exported):
    with pytest.raises(ConfigError, match="float16"):
        import_hf(exported, "float16")
    with pytest.raises(ConfigError, match="shardings have no sharding for the parameter"):
        import_hf(exported, shardings={"text": {}})


# ------------------------------------------------------------------------------------------ launch.export_hf

# One process tries all damages, as starting one takes longer than all else.
EXPORT_ALL = """
import pathlib, sys
from absl import flags
from gui_owl_jax.agent.errors import GuiOwlError
from launch import export_hf
for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    given = [f"--policy={folder}", f"--out={sys.argv[2]}/{folder.name}"]
    flags.FLAGS(["export_hf", "--config=configs/nano.py", *given])
    flags.FLAGS.config.mesh.fsdp, flags.FLAGS.config.model.vision_window = 2, 0
    try:
        export_hf.main([])
        print("told", folder.name, "was exported")
    except GuiOwlError as error:
        print("told", folder.name, type(error).__name__, " ".join(str(error).split()))
"""


@pytest.fixture
def damaged(exported, tmp_path) -> dict[str, str]:
    """Folders of damaged checkpoints under `tmp_path / "all"`, beside a sound one: name -> what the error must say."""
    norm = norm_of(exported)

    def damage(name: str) -> pathlib.Path:
        return shutil.copytree(exported, tmp_path / "all" / name)

    first = sorted(exported.glob("*.safetensors"))[0].name
    (damage("missing") / first).unlink()
    edit_shard(damage("shape"), lambda t: t.update({norm: t[norm][1:].copy()}), norm)
    with open(damage("truncated") / first, "r+b") as file:
        file.truncate(1000)
    (damage("pickle") / first).write_bytes(pickle.dumps({}, protocol=4))
    unknown = damage("unknown") / "config.json"
    unknown.write_text(unknown.read_text().replace('"model_type": "qwen', '"model_type": "gwen'))
    edit_shard(damage("nan"), lambda t: t.update({norm: t[norm] * np.nan}), norm)
    (damage("sound") / "generation_config.json").write_text('{"temperature": 0.5}')
    return {
        "missing": f"{first} is missing",
        "shape": r"has shape \(127,\)",
        "truncated": f"{first} is cut short",
        "pickle": f"{first} is a pickle",
        "unknown": "unknown model_type 'gwen",
        "nan": "holds 128 values that are not finite",
    }


def test_export_main_refuses_and_writes_nothing(damaged, tmp_path):
    """Under a mesh of two devices; the sound folder among them is exported from sharded weights."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-c", EXPORT_ALL, str(tmp_path / "all"), str(tmp_path / "out")]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    said = dict(line.split(" ", 2)[1:] for line in done.stdout.splitlines() if line.startswith("told "))
    assert said.pop("sound") == "was exported"
    assert said.keys() == damaged.keys()
    for name, message in damaged.items():
        assert re.match(f"CheckpointError .*{message}", said[name]), said[name]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"sound"}
    assert_same_bits(tensors_of(tmp_path / "out" / "sound"), tensors_of(tmp_path / "all" / "sound"))
    assert load_generation(tmp_path / "out" / "sound") == {"temperature": 0.5}


def test_what_is_sound_is_read(exported, model, read):
    config, params = read(exported)
    assert config == model[0]
    assert_same_tree(jax.tree.map(np.asarray, params), model[1])
    assert len(tensors_of(exported)) == len(names.slots(config))
