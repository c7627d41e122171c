"""Live comparison: what we export is loaded by transformers and computes the same. Needs torch."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from gui_owl_jax.agent.prompts import ImageRef, Message
from gui_owl_jax.hf.checkpoint import export_hf, import_hf
from gui_owl_jax.hf.config_io import config_to_json
from gui_owl_jax.hf.images import pixel_values
from gui_owl_jax.hf.processor import EncodedPrompt, Processor
from gui_owl_jax.models import layout, qwen_vl
from gui_owl_jax.models.config import QwenVLConfig

pytestmark = pytest.mark.parity
TOLERANCE = 2e-5

CHAT = [
    Message("system", ("Device: mobile. Tool: mobile_use.",)),
    Message("user", ("Task: Open Settings\n", ImageRef(0))),
    Message("assistant", ("Action: Tap Settings.",)),
    Message("user", (ImageRef(1), " and <|image_pad|> go on")),
]


@pytest.fixture(scope="module")
def screenshots() -> dict[int, np.ndarray]:
    rng = np.random.default_rng(0)
    return {i: rng.integers(0, 256, (h, w, 3), dtype=np.uint8) for i, (h, w) in enumerate([(96, 160), (70, 45)])}


def our_logits(config: QwenVLConfig, params: dict, prompt: EncodedPrompt) -> np.ndarray:
    ids = prompt.ids
    # The user spelled <|image_pad|>; as plain text it is no pad, so the starts can be found from the ids.
    example = layout.Example(ids, np.zeros(len(ids), np.float32), prompt.images)
    patches = sum(len(image.patches) for image in prompt.images)
    patches += -patches % 64  # towers with attention windows take whole windows
    batch = layout.lay_out_rows([[example]], config, len(ids), patches)

    def run(params, batch):
        return qwen_vl.logits(config, params, qwen_vl.hidden_states(config, params, batch))

    return np.asarray(jax.jit(run)(params, batch))[0]


def their_logits(folder, config: QwenVLConfig, processor: Processor, prompt: EncodedPrompt) -> np.ndarray:
    torch = pytest.importorskip("torch", reason="the live comparison needs torch: bash tests/run.sh parity")
    transformers = pytest.importorskip("transformers")
    model, info = transformers.AutoModelForImageTextToText.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32, attn_implementation="eager"
    )
    assert {key: list(value) for key, value in info.items() if value} == {}
    ids = torch.tensor(prompt.ids[None].astype(np.int64))
    values = np.concatenate([pixel_values(image, processor.image_config) for image in prompt.images])
    with torch.no_grad():
        output = model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=(ids == config.image_token_id).long(),
            pixel_values=torch.tensor(values),
            image_grid_thw=torch.tensor([[1, *image.grid] for image in prompt.images]),
        )
    return output.logits[0].numpy()


def test_exported_model_computes_the_same(model, model_processor, screenshots, tmp_path):
    config, params = model
    prompt = model_processor.encode_prompt(CHAT, screenshots)
    folder = export_hf(config, params, tmp_path / "out", model_processor, max_shard_bytes=400_000)
    theirs = their_logits(folder, config, model_processor, prompt)
    ours = our_logits(config, params, prompt)
    assert np.abs(theirs).max() > 1
    assert np.abs(ours - theirs).max() < TOLERANCE


def test_exported_import_computes_the_same(conformance, processor, screenshots, tmp_path):
    """The reference checkpoint, read, written and loaded again."""
    config, params = import_hf(conformance / "qwen_vl" / "qwen3_vl")
    prompt = processor.encode_prompt(CHAT, screenshots)
    folder = export_hf(config, params, tmp_path / "out", processor, dtype="bfloat16")
    theirs = their_logits(folder, config, processor, prompt)
    assert np.abs(our_logits(config, params, prompt) - theirs).max() < TOLERANCE


@pytest.fixture
def theirs(model, tmp_path):
    """A model of transformers with the shapes of `model`, every parameter drawn at random."""
    torch = pytest.importorskip("torch", reason="the live comparison needs torch: bash tests/run.sh parity")
    transformers = pytest.importorskip("transformers")
    (tmp_path / "shape").mkdir()
    (tmp_path / "shape" / "config.json").write_text(json.dumps(config_to_json(model[0])))
    made = transformers.AutoModelForImageTextToText.from_config(
        transformers.AutoConfig.from_pretrained(tmp_path / "shape")
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return made


def load_theirs(folder, dtype):
    """A model of transformers as a folder holds it; all its tensors must be known, and all parameters stored."""
    transformers = pytest.importorskip("transformers")
    made, info = transformers.AutoModelForImageTextToText.from_pretrained(folder, output_loading_info=True, dtype=dtype)
    assert {key: list(value) for key, value in info.items() if value} == {}
    return made


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", [None, "transformers"])
def test_transformers_to_ours_to_transformers_is_bit_equal(model, theirs, tmp_path, dtype, layout):
    """Through the published files (default), and through those that transformers 5 itself writes."""
    torch = pytest.importorskip("torch")
    theirs = theirs.to(getattr(torch, dtype))
    theirs.save_pretrained(tmp_path / "theirs")
    config, params = import_hf(tmp_path / "theirs", None)
    assert config == model[0]
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {dtype}
    export_hf(config, params, tmp_path / "ours", expert_layout=layout, max_shard_bytes=400_000)
    again = load_theirs(tmp_path / "ours", getattr(torch, dtype)).state_dict()
    before = theirs.state_dict()
    assert before.keys() == again.keys()
    for name, tensor in before.items():
        assert tensor.dtype == again[name].dtype
        assert torch.equal(tensor.view(torch.uint8), again[name].view(torch.uint8)), name


def test_the_hub_layout_is_the_default_and_transformers_transposes_it(model, tmp_path):
    torch = pytest.importorskip("torch", reason="the live comparison needs torch: bash tests/run.sh parity")
    config, params = model
    if config.text.moe is None:
        pytest.skip("a model without experts")
    folder = export_hf(config, params, tmp_path / "ours")
    name = "model.language_model.layers.1.mlp.experts.gate_up_proj"
    stored = load_file(folder / "model.safetensors")[name]
    assert stored.shape == (8, 128, 192)
    loaded = load_theirs(folder, torch.float32).state_dict()[name].numpy()
    np.testing.assert_array_equal(loaded, stored.swapaxes(1, 2))


def test_exported_processor_makes_the_same_inputs(model, model_processor, screenshots, tmp_path):
    pytest.importorskip("torch", reason="the live comparison needs torch: bash tests/run.sh parity")
    transformers = pytest.importorskip("transformers")
    config, params = model
    processor = model_processor
    folder = export_hf(config, params, tmp_path / "out", processor)
    prompt = processor.encode_prompt(CHAT[:3], screenshots)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    images = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    found = images(images=[screenshots[0]], return_tensors="np")
    np.testing.assert_array_equal(found["pixel_values"], pixel_values(prompt.images[0], processor.image_config))
    assert found["image_grid_thw"].tolist() == [[1, *prompt.images[0].grid]]

    messages = [
        {
            "role": message.role,
            "content": [
                {"type": "text", "text": p} if isinstance(p, str) else {"type": "image"} for p in message.content
            ],
        }
        for message in CHAT[:3]
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    pads = "<|image_pad|>" * (len(found["pixel_values"]) // images.merge_size**2)
    assert tokenizer(text.replace("<|image_pad|>", pads))["input_ids"] == prompt.ids.tolist()
