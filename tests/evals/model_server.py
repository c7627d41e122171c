"""A server of the chat completions protocol in this process, for tests of its client."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[dict, dict], tuple[int, dict, object]]


def said(text: object) -> tuple[int, dict, dict]:
    """A good answer: status, headers, content."""
    return 200, {}, {"choices": [{"message": {"role": "assistant", "content": text}}]}


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """Serves `answer(body, headers) -> (status, headers, content)`; gives the base url."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            assert self.path == "/v1/chat/completions"
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, headers, content = answer(body, dict(self.headers))
            raw = content if isinstance(content, bytes) else json.dumps(content).encode()
            with contextlib.suppress(OSError):  # the client may have gone
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(raw))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(raw)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
