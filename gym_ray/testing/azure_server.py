"""Azure Blob storage on this machine, for the time of a test, where its emulator is installed."""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from azure.storage.blob import BlobServiceClient

__all__ = ["AzureServer", "azure_server", "azurite"]

_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of every emulator, and of nothing else."""
_CONTAINER = "rollouts"
_START_TIMEOUT_S = 30.0
_LISTENS = re.compile(rb"listens on http://127\.0\.0\.1:(\d+)")


@dataclass(frozen=True, slots=True)
class AzureServer:
    """A server that runs.

    Attributes:
        port: Its port on loopback.
    """

    port: int

    def new_url(self) -> str:
        """Return the URL of a place that nothing else uses."""
        return f"abfs://{_CONTAINER}/{secrets.token_hex(6)}"

    def connection_string(self) -> str:
        """Return what Azure's clients find it by."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};AccountKey={_KEY};"
            f"BlobEndpoint=http://127.0.0.1:{self.port}/{_ACCOUNT};"
        )

    def options(self) -> dict[str, Any]:
        """Return what fsspec is to be given."""
        return {"connection_string": self.connection_string()}


def azurite() -> str | None:
    """Return the emulator's program, None where it is not installed."""
    local = Path(sys.prefix) / "azurite" / "node_modules" / ".bin" / "azurite-blob"
    return str(local) if local.exists() else shutil.which("azurite-blob")


@contextmanager
def azure_server(program: str) -> Iterator[AzureServer]:
    """Serve Azure Blob on a free port of loopback for the block, with one container.

    Args:
        program: See :func:`azurite`.

    Raises:
        AssertionError: It did not start.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
        process = subprocess.Popen([*command, "--silent"], cwd=folder, stdout=subprocess.PIPE)  # noqa: S603 - azurite
        try:
            server = AzureServer(_port(process))
            with BlobServiceClient.from_connection_string(server.connection_string()) as client:
                client.create_container(_CONTAINER).close()
            yield server
        finally:
            process.terminate()
            process.communicate()


def _port(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    said = b""
    too_late = threading.Timer(_START_TIMEOUT_S, process.kill)  # which ends its output
    too_late.start()
    try:
        while line := process.stdout.readline():
            said += line
            if found := _LISTENS.search(line):
                return int(found[1])
    finally:
        too_late.cancel()
    raise AssertionError(f"azurite did not start: {said.decode(errors='replace')}")
