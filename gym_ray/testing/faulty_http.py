"""A proxy between a client and a server that loses answers, refuses, stalls and breaks off, on request."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Fault", "FaultyHttp", "Request", "faulty_http"]

_TIMEOUT_S = 30.0
_SLOW_S = 0.02
"""Between two bytes of a slow answer."""
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "expect", "content-length"})
_ERROR = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>on request</Message></Error>"
_CODES = {500: b"InternalError", 503: b"SlowDown"}


class Fault(StrEnum):
    """What goes wrong with a request."""

    LOST_ANSWER = "the server does it, and the connection ends without an answer"
    STATUS_500 = "the server answers 500 and does nothing"
    STATUS_503 = "the server answers 503 and does nothing"
    CUT_REQUEST = "the connection ends in the middle of the request, and the server sees nothing"
    CUT_ANSWER = "the connection ends in the middle of the answer's body"
    SLOW_ANSWER = "the answer's body comes byte after byte"
    SILENCE = "the server does it, and nothing comes back until the proxy ends"


@dataclass(frozen=True, slots=True)
class Request:
    """One request, as it came.

    Attributes:
        method: HTTP method.
        path: Path with query.
        size: Bytes of its body; -1 when the body was not read.
    """

    method: str
    path: str
    size: int


class FaultyHttp:
    """What the proxy does, and what came by.

    Args:
        target: Host and port of the server.

    Attributes:
        url: Root URL of the proxy.
        requests: Every request so far, in the order of their ends.
        held: Set once a request is met with silence.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.url = ""
        self.requests: list[Request] = []
        self.held = threading.Event()
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._faults: list[tuple[Fault, Callable[[str, str], bool]]] = []

    def fail(self, fault: Fault, only: Callable[[str, str], bool], times: int = 1) -> None:
        """Let the next requests go wrong of whose method and path ``only`` says so."""
        with self._lock:
            self._faults += [(fault, only)] * times

    def calm(self) -> None:
        """Let nothing more go wrong, end what is silent, and forget what came by."""
        with self._lock:
            self._faults.clear()
            self.requests.clear()
        self.held.clear()
        self.ended.set()
        self.ended = threading.Event()

    def left(self) -> int:
        """Return how many faults have not been met."""
        with self._lock:
            return len(self._faults)

    def next_fault(self, method: str, path: str) -> Fault | None:
        """Take the fault of a request, if it is to have one."""
        with self._lock:
            for index, (fault, only) in enumerate(self._faults):
                if only(method, path):
                    del self._faults[index]
                    return fault
        return None

    def note(self, request: Request) -> None:
        """Write a request down."""
        with self._lock:
            self.requests.append(request)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _TIMEOUT_S
    plan: FaultyHttp

    def handle_any(self) -> None:
        fault = self.plan.next_fault(self.command, self.path)
        length = int(self.headers.get("Content-Length", 0))
        if fault is Fault.CUT_REQUEST:
            self.rfile.read(length // 2)
            self.plan.note(Request(self.command, self.path, -1))
            self.close_connection = True
            return
        body = self.rfile.read(length)
        self.plan.note(Request(self.command, self.path, len(body)))
        if fault in (Fault.STATUS_500, Fault.STATUS_503):
            status = 500 if fault is Fault.STATUS_500 else 503
            self._answer(status, [("Content-Type", "application/xml")], _ERROR % _CODES[status])
            return
        status, headers, answer = self._ask(body)
        if fault is Fault.SILENCE:
            self.plan.held.set()
            self.plan.ended.wait(_TIMEOUT_S)
        if fault in (Fault.LOST_ANSWER, Fault.SILENCE):
            self.close_connection = True
            return
        self._answer(status, headers, answer, fault)

    def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(*self.plan.target, timeout=_TIMEOUT_S)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
            connection.request(self.command, self.path, body, {**headers, "Content-Length": str(len(body))})
            answer = connection.getresponse()
            content = answer.read()
            kept = [pair for pair in answer.getheaders() if pair[0].lower() not in _HOP_BY_HOP]
            if self.command == "HEAD":
                kept.append(("Content-Length", answer.headers.get("Content-Length", "0")))
            return answer.status, kept, content
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, fault: Fault | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if fault is Fault.CUT_ANSWER:
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        elif fault is Fault.SLOW_ANSWER:
            for start in range(len(body)):
                self.wfile.write(body[start : start + 1])
                self.plan.ended.wait(_SLOW_S)
        else:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


for _method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
    setattr(_Handler, f"do_{_method}", _Handler.handle_any)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that give up in the middle are what this is for."""


@contextmanager
def faulty_http(target: tuple[str, int]) -> Iterator[FaultyHttp]:
    """Pass requests on to a server, from a free port of loopback, for the block.

    Args:
        target: Host and port of the server.
    """
    plan = FaultyHttp(target)
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"plan": plan}))
    plan.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="faulty http")
    thread.start()
    try:
        yield plan
    finally:
        plan.ended.set()
        server.shutdown()
        thread.join(_TIMEOUT_S)
        server.server_close()
