from __future__ import annotations

import numpy as np
import pytest

from gui_owl_jax.agent.prompts import ImageRef, Message
from gui_owl_jax.evals.answerers import EngineAnswerer
from gui_owl_jax.evals.benchmark import Request
from gui_owl_jax.hf.images import ImageConfig
from gui_owl_jax.hf.processor import Processor
from gui_owl_jax.rollout.engine import Sample, request_seed


class Echo:
    """An engine that answers with the last word of the prompt, and remembers the seeds."""

    def __init__(self, processor: Processor):
        self.processor = processor
        self.seeds = np.zeros((0, 2), np.uint32)

    def generate(self, params, prompts, seeds):
        assert params == "weights" and len(prompts) == len(seeds) > 0
        self.seeds = seeds
        for prompt in prompts:
            words = self.processor.tokenizer.decode(prompt.ids).split("<|im_end|>")[-2].split()[-1]
            ids = self.processor.encode_response(words)
            yield Sample(ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.float32), False)


@pytest.fixture(scope="module")
def processor() -> Processor:
    from gui_owl_jax.hf.tokenizer import small_tokenizer

    tokenizer = small_tokenizer(("Press the button",), 400, {"image_pad": 390, "vision_start": 391, "vision_end": 392})
    return Processor(tokenizer, ImageConfig(min_pixels=1024, max_pixels=64 * 64))


def asked(words: str, shape: tuple[int, int] = (60, 100), number: int = 0) -> Request:
    return Request((Message("user", (ImageRef(0), words)),), {0: np.zeros((*shape, 3), np.uint8)}, (3, number))


def test_replies_come_in_order_with_the_size_that_was_shown(processor):
    engine = Echo(processor)
    answerer = EngineAnswerer(engine, "weights", processor)
    replies = answerer([asked("Press save", number=1), asked("Press open", (100, 60), number=2)])
    assert [(reply.response, reply.shown) for reply in replies] == [("save", (64, 32)), ("open", (32, 64))]
    np.testing.assert_array_equal(engine.seeds, [request_seed(3, 1), request_seed(3, 2)])


def test_what_cannot_be_encoded_fails_alone(processor):
    answerer = EngineAnswerer(Echo(processor), "weights", processor)
    missing = Request((Message("user", (ImageRef(7),)),), {}, (3, 9))
    thin, fine, lost = answerer([asked("thin", (1, 500)), asked("Press save"), missing])
    assert "200 times" in thin.failure and fine.response == "save" and "step 7" in lost.failure
    assert [reply.failure != "" for reply in answerer([missing])] == [True]  # the engine is not called for nothing


def test_texts_show_nothing(processor):
    (reply,) = EngineAnswerer(Echo(processor), "weights", processor)(
        [Request((Message("user", ("Press save",)),), {}, (0,))]
    )
    assert (reply.response, reply.shown) == ("save", (0, 0))
