"""Our engine against an endpoint served by transformers: the same greedy answers on real screenshots. Needs torch."""

from __future__ import annotations

import base64
import io
import json
import pathlib
import threading

import pytest
from PIL import Image

from gui_owl_jax.evals.answers import read_answers
from gui_owl_jax.hf.checkpoint import export_hf
from gui_owl_jax.hf.images import ImageConfig
from gui_owl_jax.hf.processor import Processor
from gui_owl_jax.hf.tokenizer import small_tokenizer
from tests.evals.model_server import said, serving
from tests.hf.conftest import CORPUS, PLACES, nano_model, random_params
from tests.launch.conftest import Main

pytestmark = pytest.mark.parity
PAIRS = 18
TOKENS = 16
# Screens of 1920 x 1080 become 416 x 224 pixels, which a CPU reads quickly.
BOUNDS = {"min_pixels": 32 * 32, "max_pixels": 96 * 1024}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> pathlib.Path:
    """A nano Qwen3-VL with random weights, which says words, and of special tokens only the one that ends an answer.

    Servers leave the others out of what they send.
    """
    config = nano_model("untied")
    tokenizer = small_tokenizer(CORPUS, 1024, PLACES)
    params = random_params(config)
    silent = [i for i in range(1024) if i != PLACES["im_end"] and tokenizer.decode([i]).startswith("<|")]
    params["head"]["kernel"][:, silent] = 0
    processor = Processor(tokenizer, ImageConfig.for_model(config, **BOUNDS))
    return export_hf(config, params, tmp_path_factory.mktemp("checkpoint") / "hf", processor, dtype="float32")


@pytest.fixture(scope="module")
def annotations(conformance, tmp_path_factory) -> pathlib.Path:
    """The annotations of OSWorld-G whose screenshots are there."""
    there = {path.name for path in (conformance / "grounding" / "images").iterdir()}
    name = "OSWorld-G_sspro_format.json"
    entries = json.loads((conformance / "grounding" / "osworld_g" / name).read_text())
    folder = tmp_path_factory.mktemp("annotations")
    (folder / name).write_text(json.dumps([entry for entry in entries if entry["img_filename"] in there]))
    return folder


class Served:
    """A checkpoint behind the protocol, as transformers reads, prompts and samples it."""

    def __init__(self, folder: pathlib.Path):
        self.torch = pytest.importorskip("torch", reason="the live comparison needs torch: bash tests/run.sh parity")
        pytest.importorskip("torchvision", reason="processors of transformers need torchvision")
        transformers = pytest.importorskip("transformers")
        self.processor = transformers.AutoProcessor.from_pretrained(folder)
        # The resampling of Pillow, as ours: that of torchvision differs by some grey levels.
        self.processor.image_processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
        self.model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=self.torch.float32)
        self.margins: list[float] = []
        self.lock = threading.Lock()

    def __call__(self, body: dict, headers: dict) -> tuple[int, dict, dict]:
        assert body["temperature"] == 0
        chat = [{"role": m["role"], "content": _parts(m["content"])} for m in body["messages"]]
        options = {"tokenize": True, "return_dict": True, "return_tensors": "pt", "add_generation_prompt": True}
        inputs = self.processor.apply_chat_template(chat, **options)
        with self.lock, self.torch.no_grad():
            out = self.model.generate(
                **inputs,
                max_new_tokens=body["max_tokens"],
                do_sample=False,
                eos_token_id=[PLACES["im_end"], PLACES["endoftext"]],
                output_logits=True,
                return_dict_in_generate=True,
            )
            for logits in out.logits:
                best = logits[0].topk(2).values
                self.margins.append(float(best[0] - best[1]))
        ids = out.sequences[0, inputs["input_ids"].shape[1] :]
        return said(self.processor.tokenizer.decode(ids, skip_special_tokens=True))


def _parts(content: str | list) -> list[dict]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [part if part["type"] == "text" else {"type": "image", "image": _picture(part)} for part in content]


def _picture(part: dict) -> Image.Image:
    raw = base64.b64decode(part["image_url"]["url"].removeprefix("data:image/png;base64,"))
    return Image.open(io.BytesIO(raw)).convert("RGB")


def test_engine_and_endpoint_answer_alike(conformance, checkpoint, annotations, tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    flags = (
        "--config=configs/benchmark.py",
        "--config.compute.dtype=float32",
        f"--config.sampler.max_new_tokens={TOKENS}",
        "--config.sampler.row_buckets=(6,)",
        *(f"--config.image.{name}={value}" for name, value in BOUNDS.items()),
        "--benchmark=osworld_g_mai_ui",
        f"--data={annotations}",
        f"--images={conformance / 'grounding' / 'images'}",
        "--dialect=gui_owl_1_5",
    )
    served = Served(checkpoint)
    with serving(served) as url:
        Main("evaluate", *flags, f"--endpoint={url}", "--model=owl", f"--out={tmp_path / 'endpoint'}").succeed()
    Main("evaluate", *flags, f"--policy={checkpoint}", f"--out={tmp_path / 'engine'}").succeed()

    ours, theirs = (read_answers(tmp_path / name / "answers.jsonl")[1] for name in ("engine", "endpoint"))
    assert len(ours) == PAIRS and not any(answer.failure for answer in (*ours, *theirs))
    responses = {answer.looks[0].response for answer in ours}
    assert len(responses) > PAIRS / 2  # they depend on the question
    assert min(served.margins) > 1e-3  # no two tokens are so near to each other that rounding decides between them
    assert ours == theirs
    scores = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("engine", "endpoint")]
    assert scores[0]["verdicts"] == scores[1]["verdicts"] and scores[0]["counted"] == PAIRS
