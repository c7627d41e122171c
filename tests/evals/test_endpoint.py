"""The client of a served model, against a server in this process."""

from __future__ import annotations

import base64
import io
import threading

import numpy as np
import pytest
from PIL import Image

from gui_owl_jax.agent.errors import ConfigError, EndpointError
from gui_owl_jax.agent.prompts import ImageRef, Message
from gui_owl_jax.evals.benchmark import Request
from gui_owl_jax.evals.endpoint import Endpoint, EndpointConfig
from gui_owl_jax.hf.images import ImageConfig
from tests.evals.model_server import said, serving

IMAGE = np.random.default_rng(0).integers(0, 256, (60, 100, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def asked(name: str, image: np.ndarray = IMAGE) -> Request:
    return Request(
        (Message("system", ("Point ", "well.")), Message("user", (ImageRef(0), name))), {0: image}, seed=(0, len(name))
    )


def words(body: dict) -> str:
    return body["messages"][-1]["content"][-1]["text"]


def endpoint(url: str, **changes) -> Endpoint:
    return Endpoint(EndpointConfig(url, "owl", **{"backoff_s": 0.001, "retries": 3, **changes}))


def test_a_request_carries_texts_images_and_settings():
    seen = []

    def answer(body, headers):
        seen.append((body, headers))
        return said("here")

    with serving(answer) as url:
        (reply,) = endpoint(url, max_tokens=9)([asked("Save")])
    assert (reply.response, reply.failure) == ("here", "")
    ((body, headers),) = seen
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("owl", 9, 0.0) and "seed" not in body
    assert body["messages"][0] == {"role": "system", "content": "Point well."}
    picture, text = body["messages"][1]["content"]
    assert text == {"type": "text", "text": "Save"} and "Authorization" not in headers
    raw = base64.b64decode(picture["image_url"]["url"].removeprefix("data:image/png;base64,"))
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(raw))), IMAGE)


def test_many_requests_keep_their_order_and_overlap():
    together = threading.Barrier(4)

    def answer(body, headers):
        together.wait(timeout=30)  # passes only if four requests are on their way at once
        return said(words(body).upper())

    with serving(answer) as url:
        replies = endpoint(url, concurrency=4)([asked(f"item {i}") for i in range(12)])
    assert [reply.response for reply in replies] == [f"ITEM {i}" for i in range(12)]


def test_the_size_that_the_model_saw_is_computed():
    with serving(lambda body, headers: said("x")) as url:
        config = ImageConfig(min_pixels=1024, max_pixels=64 * 64)
        (reply,) = endpoint(url, image=config)([asked("Save")])
    assert reply.shown == (64, 32)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_passing_trouble_is_waited_out(status):
    count = []

    def answer(body, headers):
        count.append(1)
        return (status, {"Retry-After": "0"}, {"error": "busy"}) if len(count) < 4 else said("at last")

    with serving(answer) as url:
        (reply,) = endpoint(url)([asked("Save")])
    assert reply.response == "at last" and len(count) == 4


def test_lasting_trouble_is_a_failure_of_its_request_alone():
    def answer(body, headers):
        return (500, {}, {"error": "out of memory"}) if words(body) == "bad" else said("good")

    with serving(answer) as url:
        replies = endpoint(url)([asked("good"), asked("bad"), asked("fine")])
    assert [bool(reply.failure) for reply in replies] == [False, True, False]
    assert "500" in replies[1].failure and "out of memory" in replies[1].failure


def test_a_request_that_is_too_long_is_not_sent_again():
    count = []

    def answer(body, headers):
        count.append(1)
        return 400, {}, {"error": "context too long"}

    with serving(answer) as url:
        (reply,) = endpoint(url)([asked("Save")])
    assert "context too long" in reply.failure and len(count) == 1


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"<html>", "not JSON"),
        ([], "no choices"),
        ({"choices": []}, "no choices"),
        ({"choices": [{"message": {"content": 3}}]}, "int"),
        ({"choices": [{"message": {"content": None, "tool_calls": [{}]}}]}, "tool parser"),
    ],
)
def test_other_shapes_of_answers_are_failures(content, named):
    with serving(lambda body, headers: (200, {}, content)) as url:
        (reply,) = endpoint(url)([asked("Save")])
    assert named in reply.failure and reply.response == ""


@pytest.mark.parametrize("status", [401, 404, 302])
def test_what_is_wrong_with_all_requests_stops(status, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "the-secret")
    elsewhere = []

    def answer(body, headers):
        elsewhere.append(headers["Authorization"])
        return status, {"Location": "http://127.0.0.1:1/v1/chat/completions"}, {"error": "no such model"}

    with serving(answer) as url, pytest.raises(EndpointError, match=f"{status}.*no such model") as caught:
        endpoint(url)([asked("Save")])
    assert set(elsewhere) == {"Bearer the-secret"} and "the-secret" not in str(caught.value)


def test_a_server_that_is_not_there_stops():
    with serving(lambda body, headers: said("x")) as url:
        pass
    with pytest.raises(EndpointError, match="cannot be reached"):
        endpoint(url, retries=1)([asked("Save"), asked("Open")])


def test_a_slow_answer_is_a_failure():
    stop = threading.Event()

    def answer(body, headers):
        if words(body) == "slow":
            stop.wait(30)
        return said("quick")

    with serving(answer) as url:
        replies = endpoint(url, retries=0, timeout_s=0.5)([asked("slow"), asked("quick")])
        stop.set()
    assert "no answer" in replies[0].failure and replies[1].response == "quick"


def test_what_cannot_be_sent_fails_alone():
    with serving(lambda body, headers: said("x")) as url:
        missing = Request((Message("user", (ImageRef(5),)),), {})
        line = asked("thin", np.zeros((1, 400, 3), np.uint8))
        replies = endpoint(url)([missing, asked("Save"), line])
    assert "no image" in replies[0].failure and replies[1].response == "x" and "200 times" in replies[2].failure


@pytest.mark.parametrize(
    "url", ["localhost:8000/v1", "ftp://host/v1", "http://user:word@host/v1", "http://host/v1?a=b"]
)
def test_malformed_addresses_are_named(url):
    with pytest.raises(ConfigError, match="url"):
        EndpointConfig(url, "owl")
