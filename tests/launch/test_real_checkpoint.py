"""A checkpoint and a recording that others made: loaded, fine-tuned, exported, and loaded by transformers again."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from data.agentnet import read_trajectory
from gui_owl_jax.agent.context import ContextConfig, build_messages
from gui_owl_jax.hf.checkpoint import import_hf
from gui_owl_jax.hf.processor import Processor
from tests.hf.test_parity import our_logits, their_logits
from tests.launch.conftest import Main

pytestmark = pytest.mark.parity
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def config(conformance) -> str:
    return f"--config=configs/agentnet_sft.py:{conformance}"


def test_fine_tuned_and_exported_it_computes_the_same_in_transformers(conformance, config, tmp_path):
    pytest.importorskip("torch", reason="the live comparison needs torch: bash tests/run.sh parity")
    Main("train", config, f"--workdir={tmp_path / 'run'}").succeed()
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(losses) == 20
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) / 2

    Main("export_hf", f"--policy={tmp_path / 'run'}", f"--out={tmp_path / 'export'}").succeed()
    model, params = import_hf(tmp_path / "export")
    before = import_hf(conformance / "qwen_vl" / "qwen3_vl")[1]["text"]["layers"]["q"]["kernel"]
    assert np.abs(params["text"]["layers"]["q"]["kernel"] - before).max() > 1e-3  # it was trained

    processor = Processor.load(tmp_path / "export")
    trajectory = read_trajectory(conformance / "trajectory" / "s_df0fd37049f470c2.json")
    context = ContextConfig(history_n=0, style="compact")
    messages = build_messages(trajectory.instruction, trajectory.family, trajectory.steps[:5], context)
    prompt = processor.encode_prompt(messages, {5: trajectory.steps[5].observation.image})
    assert prompt.images[0].grid == (704 // 16, 1280 // 16)  # own resolution, rounded to multiples of 32
    theirs = their_logits(tmp_path / "export", model, processor, prompt)  # fails on missing and unexpected keys
    ours = our_logits(model, params, prompt)
    assert ours.shape == theirs.shape == (len(prompt.ids), 1024)
    assert np.abs(theirs).max() > 1
    assert np.abs(ours - theirs).max() < TOLERANCE


def test_what_was_imported_is_exported_bit_for_bit(conformance, config, tmp_path):
    torch = pytest.importorskip("torch", reason="bfloat16 tensors are read with torch: bash tests/run.sh parity")
    safetensors = pytest.importorskip("safetensors.torch")
    source = conformance / "qwen_vl" / "qwen3_vl"
    Main("export_hf", config, f"--policy={source}", f"--out={tmp_path / 'copy'}").succeed()
    original, copy = (safetensors.load_file(folder / "model.safetensors") for folder in (source, tmp_path / "copy"))
    assert original.keys() == copy.keys() and len(original) > 50
    for name, tensor in original.items():
        assert tensor.dtype == copy[name].dtype == torch.bfloat16
        assert torch.equal(tensor.view(torch.int16), copy[name].view(torch.int16)), name
    written, read = (import_hf(folder)[0] for folder in (tmp_path / "copy", source))
    assert dataclasses.asdict(written) == dataclasses.asdict(read)
