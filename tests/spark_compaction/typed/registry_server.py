"""A schema registry for tests: Confluent's REST paths over real HTTP.

The registry is no part of Tidelog, and the product itself is a Java server that keeps its schemas in Kafka.
What is tried here is our client: ids, references, descriptors, errors, and a server that hangs, answers
without end, or is away.
"""

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Behaviour = str
"""`answers`, `hangs`, `endless`, `fails`, or `elsewhere` (a 404 of another server)."""


@dataclass
class Registry:
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Answers of /schemas/ids/ID."""
    subjects: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Answers of /subjects/NAME/versions/VERSION, by `NAME/VERSION`."""
    behaviour: Behaviour = "answers"
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def start(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(30)

    def answer(self, path: str) -> tuple[int, bytes]:
        self.asked.append(path)
        plain = path.partition("?")[0].split("/")[1:]
        if self.behaviour == "fails":
            return 503, b"not now"
        if self.behaviour == "elsewhere":
            return 404, b"<html>no such page</html>"
        if plain[:2] == ["schemas", "ids"]:
            found, code = self.schemas.get(int(plain[2])), 40403
        else:
            found, code = self.subjects.get(f"{plain[1]}/{plain[3]}"), 40401
        if found is None:
            return 404, json.dumps({"error_code": code, "message": "not found"}).encode()
        return 200, json.dumps(found).encode()


def _handler(registry: Registry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if registry.behaviour == "hangs":
                time.sleep(5)
                return
            if registry.behaviour == "endless":
                self.send_response(200)
                self.end_headers()
                for _ in range(100):
                    time.sleep(0.05)
                    self.wfile.write(b" ")
                return
            status, body = registry.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    return Handler
