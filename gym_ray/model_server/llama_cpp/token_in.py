"""Builds the prompt of a continuation from the exact tokens of its parent, where the parent's turn reads back exactly.

A text has many tokenisations. Tokenised anew, a turn of the model can become other tokens than those it sampled, and
then nothing proves that the next prompt continues them. So the parent's own tokens are sent, followed by the tokens of
what came after. That is allowed only if the parent's tokens spell, marker for marker and text for text, the new prompt
up to the end of the parent's turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from gym_ray.model_server.llama_cpp.template import END, MODEL, START, Piece

__all__ = ["continue_parent"]

Detokenize = Callable[[Sequence[int]], Awaitable[str]]


async def continue_parent(
    parent: Sequence[int],
    pieces: Sequence[Piece],
    ids: Sequence[int],
    markers: Mapping[str, int],
    detokenize: Detokenize,
) -> list[int] | None:
    """Return the parent's tokens and those of what follows its turn; None where its turn reads back differently.

    Args:
        parent: The parent's tokens, generated ones included.
        pieces: The new prompt.
        ids: Its tokens, the beginning-of-sequence token in front.
        markers: Ids of all control tokens that a prompt or a generation may hold, by name.
        detokenize: Returns the text of tokens.

    Raises:
        EngineError: The tokens could not be turned into text.
    """
    end = _end_of_last_turn(pieces)
    if end is None or not parent or parent[-1] != markers[END]:
        return None
    turns = sum(1 for marker, text in pieces[: end + 1] if marker and text == END)
    cut = _position(ids, markers[END], turns) + 1
    if list(parent) != list(ids[:cut]):
        controls = frozenset(markers.values())
        said, rendered = _Segments.of(parent, controls), _Segments.of(ids[:cut], controls)
        if said.markers != rendered.markers:
            return None
        texts = ["", *_texts(pieces[: end + 1])]  # nothing stands before the beginning-of-sequence token
        if not await _say(said, rendered, texts, markers[START], detokenize):
            return None
    return [*parent, *ids[cut:]]


@dataclass(frozen=True, slots=True)
class _Segments:
    """Tokens, split at the control tokens."""

    markers: list[int]
    between: list[list[int]]

    @classmethod
    def of(cls, tokens: Sequence[int], controls: frozenset[int]) -> _Segments:
        markers: list[int] = []
        between: list[list[int]] = [[]]
        for token in tokens:
            if token in controls:
                markers.append(token)
                between.append([])
            else:
                between[-1].append(token)
        return cls(markers, between)


async def _say(
    said: _Segments, rendered: _Segments, texts: Sequence[str], separator: int, detokenize: Detokenize
) -> bool:
    """Whether every segment of ``said`` has its text. A segment with the tokens that were rendered has it.

    All others are turned into text at once, joined by a control token whose name is in none of the texts, so that the
    result cannot be split in two ways.
    """
    wanted: list[str] = []
    tokens: list[int] = []
    for mine, theirs, text in zip(said.between, rendered.between, texts, strict=True):
        if mine != theirs:
            tokens += [separator, *mine] if wanted else mine
            wanted.append(text)
    if any(START in text for text in wanted):
        return False
    return await detokenize(tokens) == START.join(wanted)


def _end_of_last_turn(pieces: Sequence[Piece]) -> int | None:
    """Return the place of the marker that ends the model's last turn, None when it had none."""
    open_turns = [at for at in range(len(pieces) - 1) if pieces[at] == (True, START) and pieces[at + 1] == MODEL]
    if len(open_turns) < 2:  # the last one is the one that begins now
        return None
    return next(at for at in range(open_turns[-2], len(pieces)) if pieces[at] == (True, END))


def _texts(pieces: Sequence[Piece]) -> list[str]:
    """Return the text before the first marker, between each two, and behind the last."""
    texts = [""]
    for marker, text in pieces:
        if marker:
            texts.append("")
        else:
            texts[-1] += text
    return texts


def _position(ids: Sequence[int], wanted: int, count: int) -> int:
    """Return where ``wanted`` stands for the ``count``-th time."""
    at = -1
    for _ in range(count):
        at = ids.index(wanted, at + 1)
    return at
