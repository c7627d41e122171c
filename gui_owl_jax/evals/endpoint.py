"""A model behind the chat completions protocol of OpenAI, which vLLM, SGLang, `transformers serve` and others speak.

Screenshots travel as PNG inside the request. Written with the standard library alone.
"""

from __future__ import annotations

import base64
import dataclasses
import http.client
import io
import json
import os
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from PIL import Image

from gui_owl_jax.agent.errors import ConfigError, DataError, EndpointError
from gui_owl_jax.agent.prompts import ImageRef, Message
from gui_owl_jax.evals.benchmark import Reply, Request
from gui_owl_jax.hf.images import ImageConfig, smart_resize

# What waiting may mend: too many requests, a server that is starting, a proxy without its server.
RETRIED = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 529))
# What is wrong with every request alike: the key, the address, the name of the model.
FATAL = frozenset((401, 403, 404, 405))
LONGEST_WAIT = 60.0  # seconds between two tries
_SHOWN_OF_ERRORS = 300  # characters


@dataclasses.dataclass(frozen=True)
class EndpointConfig:
    """Where a model is served, and how it is asked.

    Attributes:
      url: base of the protocol, "http://localhost:8000/v1".
      model: its name there.
      max_tokens: longest answer.
      temperature: of sampling; 0 is greedy.
      top_p: of sampling.
      timeout_s: seconds until a request counts as lost.
      retries: how often a request that was lost, or answered by one of `RETRIED`, is sent again.
      backoff_s: seconds before the first of them; the wait doubles each time. A server's Retry-After is followed.
      concurrency: requests on their way at a time.
      key_variable: environment variable that holds the API key; unset: none is sent.
      image: how the served model's image processor is thought to resize. An endpoint does not tell what it showed the
        model; dialects whose points are pixels of the resized picture depend on it.
    """

    url: str
    model: str
    max_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    timeout_s: float = 300.0
    retries: int = 5
    backoff_s: float = 1.0
    concurrency: int = 8
    key_variable: str = "OPENAI_API_KEY"
    image: ImageConfig = dataclasses.field(default_factory=ImageConfig)

    def __post_init__(self):
        address = urllib.parse.urlsplit(self.url)
        if address.scheme not in ("http", "https") or not address.hostname or address.username or address.query:
            raise ConfigError(f"endpoint url is {self.url!r}, must look like https://host/v1, without user or query")
        if not self.model:
            raise ConfigError("endpoint: the name of the model is missing")
        if min(self.max_tokens, self.concurrency) < 1 or self.timeout_s <= 0 or min(self.retries, self.backoff_s) < 0:
            raise ConfigError(f"endpoint has a value out of range: {self}")


class Endpoint:
    """Answers with a served model (an `evals.benchmark.Answerer`). Can be used from several threads.

    The words of a reply are the content of its message as they stand; the reasoning that some servers send beside it is
    not part of them.
    """

    def __init__(self, config: EndpointConfig):
        self.config = config
        # A redirect would be followed with the key to wherever it points.
        self._opener = urllib.request.build_opener(_NoRedirect)

    def __call__(self, requests: Sequence[Request]) -> list[Reply]:
        """One reply per request; one that has no answer after all retries, or that cannot be sent, has a failure.

        Raises:
          EndpointError: the server refuses every request (`FATAL`), or none of these could reach it.
        """
        stop = threading.Event()
        pool = ThreadPoolExecutor(max(1, min(self.config.concurrency, len(requests))))
        try:
            results = list(pool.map(lambda request: self._ask(request, stop), requests))
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
        lost = [result for result in results if isinstance(result, _Lost) and not result.reached]
        if len(lost) == len(results) > 0:
            raise EndpointError(f"{self.config.url} cannot be reached: {lost[0].why}")
        return [Reply("", failure=result.why) if isinstance(result, _Lost) else result for result in results]

    def _body(self, request: Request) -> bytes:
        config = self.config
        body = {
            "model": config.model,
            "messages": [_message(message, request.images) for message in request.messages],
            "max_tokens": config.max_tokens,
            "temperature": config.temperature,
            "top_p": config.top_p,
        }
        if config.temperature > 0 and request.seed:
            body["seed"] = int(np.random.SeedSequence(request.seed).generate_state(1)[0]) >> 1
        return json.dumps(body).encode()

    def _shown(self, request: Request) -> tuple[int, int]:
        steps = [part.step for m in request.messages for part in m.content if isinstance(part, ImageRef)]
        if not steps or steps[-1] not in request.images:
            return 0, 0
        image, shape = self.config.image, request.images[steps[-1]].shape
        height, width = smart_resize(shape[0], shape[1], image.factor, image.min_pixels, image.max_pixels)
        return width, height

    def _ask(self, request: Request, stop: threading.Event) -> Reply | _Lost:
        config = self.config
        try:
            shown, body = self._shown(request), self._body(request)
        except DataError as error:
            return _Lost(str(error))
        lost = _Lost("not sent", reached=False)
        for attempt in range(config.retries + 1):
            if stop.wait(
                0 if attempt == 0 else min(LONGEST_WAIT, max(lost.wait, config.backoff_s * 2 ** (attempt - 1)))
            ):
                break
            found = self._send(body)
            if isinstance(found, str):
                return Reply(found, shown)
            lost = dataclasses.replace(found, reached=found.reached or lost.reached)
            if not lost.again:
                break
        return lost

    def _send(self, body: bytes) -> str | _Lost:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key := os.environ.get(self.config.key_variable, ""):
            headers["Authorization"] = f"Bearer {key}"
        url = f"{self.config.url.rstrip('/')}/chat/completions"
        try:
            with self._opener.open(
                urllib.request.Request(url, body, headers, method="POST"), timeout=self.config.timeout_s
            ) as reply:
                return _content(reply.read())
        except urllib.error.HTTPError as error:
            said = _said(error)
            if error.code in FATAL or 300 <= error.code < 400:
                raise EndpointError(f"{url} answers {error.code}: {said}") from None
            wait = error.headers.get("Retry-After", "") if error.headers else ""
            wait_s = float(wait) if wait.isdecimal() else 0.0
            return _Lost(f"the endpoint answers {error.code}: {said}", again=error.code in RETRIED, wait=wait_s)
        except (OSError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
            reason = getattr(error, "reason", None) or error
            timed_out = isinstance(reason, TimeoutError)
            return _Lost(f"no answer: {type(reason).__name__}: {reason}", again=True, reached=timed_out)
        except _WrongShape as error:
            return _Lost(f"the endpoint's answer is no chat completion: {error}")


@dataclasses.dataclass(frozen=True)
class _Lost:
    """A request without an answer: why, whether to try again (not before `wait` seconds), and whether it arrived."""

    why: str
    again: bool = False
    wait: float = 0.0
    reached: bool = True


class _WrongShape(Exception):
    """A reply is not what the protocol says."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any) -> None:
        return None


def _content(raw: bytes) -> str:
    """The words of a chat completion."""
    try:
        reply = json.loads(raw)
    except ValueError as error:
        raise _WrongShape(f"not JSON ({error})") from error
    choices = reply.get("choices") if isinstance(reply, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise _WrongShape("it has no choices")
    message = choices[0].get("message")
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, str):
        taken = " (the server took a tool call out of it: turn its tool parser off)"
        calls = isinstance(message, dict) and bool(message.get("tool_calls"))
        raise _WrongShape(f"message.content is {type(content).__name__}, must be a string{taken if calls else ''}")
    return content


def _said(error: urllib.error.HTTPError) -> str:
    try:
        return error.read(_SHOWN_OF_ERRORS).decode("utf-8", "replace") or error.reason
    except (OSError, http.client.HTTPException):
        return str(error.reason)


def _message(message: Message, images: Mapping[int, np.ndarray]) -> dict[str, Any]:
    if message.tool_calls or message.token_ids is not None:
        raise DataError("an endpoint takes texts and images, no tool calls and no sampled ids")
    parts: list[dict[str, Any]] = []
    for part in message.content:
        if isinstance(part, str):
            parts.append({"type": "text", "text": part})
        elif isinstance(part, ImageRef) and part.step in images:
            parts.append({"type": "image_url", "image_url": {"url": _data_url(images[part.step])}})
        else:
            raise DataError(f"an endpoint cannot be shown {part}: no image of that name is in the request")
    if all(part["type"] == "text" for part in parts):
        return {"role": message.role, "content": "".join(part["text"] for part in parts)}
    return {"role": message.role, "content": parts}


def _data_url(image: np.ndarray) -> str:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
