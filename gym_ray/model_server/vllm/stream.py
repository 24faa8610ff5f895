"""Relays a captured stream: every chunk is read, and shows the client only what it asked for.

Nothing waits: whole events go out before more bytes are read, and at most one open event is held. Events that need no
change keep their bytes, and so do comments.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

from gym_ray import exact_json
from gym_ray.dialects.sse import BOM, WholeEvents, cut_events, parse_payload
from gym_ray.errors import EngineError
from gym_ray.model_server.vllm.client_view import ClientView
from gym_ray.token_id_capture.adapters.vllm_stream import ChatTokenStream

__all__ = ["ClientStream", "whole_events"]

_BETWEEN: Final = re.compile(rb"(?>\r\n|\n|\r){2,}")
"""What ends an event: line ends that follow each other; one CRLF is a single one."""
_BETWEEN_LF: Final = re.compile(rb"\n{2,}")
"""The same where no CR is; looking for one byte is faster."""


def whole_events(text: bytes) -> Iterator[bytes]:
    """Yield the text in pieces that each end behind a blank line: one event each, with its comments."""
    start = 0
    between = _BETWEEN if b"\r" in text else _BETWEEN_LF
    for found in between.finditer(text):
        yield text[start : found.end()]
        start = found.end()
    if start < len(text):
        yield text[start:]


class ClientStream:
    """What the client sees of a stream, as it flows.

    Args:
        chunks: The engine's bytes.
        tokens: Learns what each chunk says about tokens.
        view: What the client asked for.
        refusal: Asked after each chunk, and with True at the end, why the answer must not go on; "" lets it.
    """

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        tokens: ChatTokenStream,
        view: ClientView,
        refusal: Callable[[bool], str] = lambda _ended: "",
    ) -> None:
        self._chunks, self._tokens, self._view, self._refusal = chunks, tokens, view, refusal
        self._whole = WholeEvents()
        self._ended = False

    def __aiter__(self) -> ClientStream:
        return self

    async def __anext__(self) -> bytes:
        """Return the next bytes.

        Raises:
            EngineError: The answer broke or must not go on, or a chunk nests too deeply to be written without its ids.
        """
        while not self._ended:
            try:
                pieces = list(whole_events(self._whole.feed(await anext(self._chunks))))
            except StopAsyncIteration:
                self._ended = True
                pieces = [self._whole.close()]
            shown = b"".join(_shown(piece, self._tokens, self._view) for piece in pieces)
            if problem := self._refusal(self._ended):
                raise EngineError(problem)
            if shown:
                return shown
        raise StopAsyncIteration


def _shown(piece: bytes, tokens: ChatTokenStream, view: ClientView) -> bytes:
    """Return the bytes of one event as the client sees it, b"" when it does not."""
    if b"{" not in piece:
        return piece
    events = list(cut_events(piece.removeprefix(BOM)))
    field, data = events[0] if len(events) == 1 else (b"", b"")
    payload = _object(data)
    if payload is None:
        return view.strip_unreadable(piece)
    tokens.feed(payload)
    changed = view.strip(payload)
    if view.hides(payload, stripped=changed):
        return b""
    if not changed:
        return piece
    try:
        written = exact_json.dumps(payload)
    except ValueError as error:
        raise EngineError(f"a chunk of the answer cannot be written without its token ids: {error}") from None
    name = b"event:" + field + b"\n" if field else b""
    return name + b"data: " + written + b"\n\n"


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        value = parse_payload(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
