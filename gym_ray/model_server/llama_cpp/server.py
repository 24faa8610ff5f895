"""llama.cpp's HTTP server inside this process; whoever hosts it owns its threads and its port."""

from __future__ import annotations

import gc
import socket
from pathlib import Path
from typing import Any, Final

from gym_ray.errors import ServerStartError
from gym_ray.model_server.llama_cpp.weights import MISSING_EXTRA

__all__ = ["LlamaCppServer"]

_QUIET: Final = -1
_HTTP_THREADS: Final = 512
"""Every call under way, waiting in line or not, and every idle connection holds one; too few make the server deaf."""


class LlamaCppServer:
    """One embedded model behind HTTP on this machine. Methods block: call them off the event loop.

    Args:
        model_path: A GGUF file.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        n_ctx: Tokens that one call may hold, prompt and answer together.
        n_parallel: Calls that run at the same time; others wait in line.
        n_threads: Threads that compute. They wait for each other at every step: one for each core is fastest on an
            idle machine, and several times slower than fewer ones where other work keeps the cores busy.
    """

    def __init__(
        self,
        model_path: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        n_ctx: int = 4096,
        n_parallel: int = 4,
        n_threads: int = 1,
    ) -> None:
        self._model_path, self._host, self._port = model_path, host, port
        self._n_ctx, self._n_parallel, self._n_threads = n_ctx, n_parallel, n_threads
        self._server: Any = None

    @property
    def url(self) -> str:
        """Root URL while the server runs.

        Raises:
            ServerStartError: It does not run.
        """
        if self._server is None:
            raise ServerStartError("the embedded model's server is not running")
        return str(self._server.listening_address)

    def start(self) -> str:
        """Load the model and listen; when this returns the model answers. A running server is left as it is.

        Returns:
            The root URL.

        Raises:
            ServerStartError: The extra is not installed, the file is missing or no model, or the port is taken.
        """
        if self._server is not None:
            return self.url
        if not self._model_path.is_file():
            raise ServerStartError(f"{self._model_path}: no such model file; give model_path an existing GGUF file")
        self._check_port()
        try:
            import xllamacpp
        except ImportError as error:
            raise ServerStartError(f"{MISSING_EXTRA} ({error})") from error
        try:
            self._server = xllamacpp.Server(self._params(xllamacpp))
        except RuntimeError as error:
            raise ServerStartError(
                f"{self._model_path}: llama.cpp could not serve it on {self._host}:{self._port}: {error}"
            ) from error
        return self.url

    def stop(self) -> None:
        """Stop listening, end the threads and free the model; idempotent."""
        if self._server is None:
            return
        self._server = None  # its destructor stops the server; there is no other way to
        gc.collect()

    def _check_port(self) -> None:
        if self._port == 0:
            return
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self._host, self._port))
            except OSError as error:
                raise ServerStartError(f"{self._host}:{self._port}: cannot listen there: {error}") from error

    def _params(self, xllamacpp: Any) -> Any:
        params = xllamacpp.CommonParams()
        params.model.path = str(self._model_path)
        params.hostnames = [self._host]
        params.port = self._port
        params.n_parallel = self._n_parallel
        params.n_ctx = self._n_ctx * self._n_parallel  # llama.cpp divides its context among the parallel calls
        params.cpuparams.n_threads = self._n_threads
        params.cpuparams_batch.n_threads = self._n_threads
        params.n_threads_http = _HTTP_THREADS
        params.warmup = False
        # Gemma's sliding-window layers drop what lies behind the window, and with it the cache of a prompt's beginning;
        # rollouts send that beginning again with every call.
        params.swa_full = True
        params.verbosity = _QUIET
        return params
