"""Places the media of a prompt again when its beginning is replaced by the tokens of a captured chain (C137).

A rendered prompt and a captured prefix can spell the same turns with other tokens, so that a picture's placeholder
tokens lie elsewhere. Spans hold where they lie: objects with ``offset`` and ``length`` in tokens of the whole prompt,
and whatever else a worker keeps there. A picture on the wrong tokens is worse than a call without it, so everything
that does not agree is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

__all__ = ["place_media_spans"]


def place_media_spans(
    chain: Iterable[Sequence[Mapping[str, Any]] | None],
    rendered: Sequence[Mapping[str, Any]],
    *,
    prefix_len: int,
    rendered_prefix_len: int,
) -> list[dict[str, Any]]:
    """Return where each medium of a prompt lies once the captured prefix is its beginning.

    Args:
        chain: The ``media_spans`` of each call of the chain, from the root to the parent; a call may repeat those of
            its ancestors.
        rendered: The spans of the prompt as it was rendered, with all of its media in order.
        prefix_len: Tokens of the captured prefix.
        rendered_prefix_len: Tokens at the start of the rendered prompt that the prefix stands for.

    Returns:
        One span for each of ``rendered``, in order: those of the chain as they were captured, and those behind the
        prefix moved with their tokens.

    Raises:
        ValueError: A span is malformed, two overlap, one crosses the end of the prefix, or the media of the chain are
            not those that were rendered within it.
    """
    captured = _captured(chain, prefix_len)
    within, behind = _divided(_ordered(rendered, "rendered"), rendered_prefix_len)
    if len(within) != len(captured):
        raise ValueError(
            f"the chain holds {len(captured)} media spans, the rendered prompt {len(within)} within the same turns"
        )
    for at, (old, new) in enumerate(zip(captured, within, strict=True)):
        if _apart_from_offset(old) != _apart_from_offset(new):
            raise ValueError(f"medium {at} of the chain is {old}, the rendered prompt has {new} there")
    moved = prefix_len - rendered_prefix_len
    return [*captured, *({**span, "offset": span["offset"] + moved} for span in behind)]


def _captured(chain: Iterable[Sequence[Mapping[str, Any]] | None], prefix_len: int) -> list[dict[str, Any]]:
    by_offset: dict[int, dict[str, Any]] = {}
    for link, spans in enumerate(chain):
        for span in _ordered(spans or (), f"call {link} of the chain"):
            known = by_offset.setdefault(span["offset"], span)
            if known != span:
                raise ValueError(f"call {link} of the chain has {span} where an ancestor has {known}")
    captured = _ordered(list(by_offset.values()), "the chain")
    if captured and _end(captured[-1]) > prefix_len:
        raise ValueError(f"the chain's span {captured[-1]} ends behind its prefix of {prefix_len} tokens")
    return captured


def _ordered(spans: Sequence[Mapping[str, Any]], where: str) -> list[dict[str, Any]]:
    """Return copies of the spans by offset, checked one by one and for overlaps."""
    for at, span in enumerate(spans):
        offset, length = span.get("offset"), span.get("length")
        if type(offset) is not int or type(length) is not int or offset < 0 or length < 1:
            raise ValueError(f"{where}: media span {at} needs an offset of 0 or more and a length of 1 or more: {span}")
    ordered = sorted((dict(span) for span in spans), key=lambda span: int(span["offset"]))
    for one, other in pairwise(ordered):
        if _end(one) > other["offset"]:
            raise ValueError(f"{where}: media spans {one} and {other} overlap")
    return ordered


def _divided(spans: list[dict[str, Any]], cut: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    for span in spans:
        if span["offset"] < cut < _end(span):
            raise ValueError(f"the rendered span {span} crosses the end of the replaced prefix at token {cut}")
    return [span for span in spans if span["offset"] < cut], [span for span in spans if span["offset"] >= cut]


def _end(span: Mapping[str, Any]) -> int:
    return int(span["offset"] + span["length"])


def _apart_from_offset(span: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in span.items() if name != "offset"}
