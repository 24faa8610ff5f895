"""A real S3 protocol on this machine, for the time of a test."""

from __future__ import annotations

import http.client
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from moto.server import ThreadedMotoServer

__all__ = ["S3Server", "s3_server"]

_BUCKET = "rollouts"


@dataclass(frozen=True, slots=True)
class S3Server:
    """A server that runs.

    Attributes:
        host: Its address.
        port: Its port.
    """

    host: str
    port: int

    def new_url(self) -> str:
        """Return the URL of a place that nothing else uses."""
        return f"s3://{_BUCKET}/{secrets.token_hex(6)}"

    def options(self, endpoint_url: str | None = None, **more: Any) -> dict[str, Any]:
        """Return what fsspec is to be given.

        Args:
            endpoint_url: Where requests go instead, such as a proxy.
            more: Further options.
        """
        return {
            "key": "testing-key",
            "secret": "testing-secret",
            "endpoint_url": endpoint_url or f"http://{self.host}:{self.port}",
            "client_kwargs": {"region_name": "us-east-1"},
            **more,
        }


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Serve S3 on a free port of loopback for the block, with one bucket."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        connection = http.client.HTTPConnection(host, port, timeout=20)
        try:
            connection.request("PUT", f"/{_BUCKET}")
            answer = connection.getresponse()
            assert answer.status == http.HTTPStatus.OK, answer.read()
        finally:
            connection.close()
        yield S3Server(host, port)
    finally:
        server.stop()
