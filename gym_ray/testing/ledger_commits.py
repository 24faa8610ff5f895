"""Commits of made-up calls for tests of ledgers: a conversation of any length, whose turns say their numbers."""

from __future__ import annotations

import hashlib
from typing import Any

from gym_ray.token_id_capture.fingerprint import FINGERPRINT_VERSION, assistant_fingerprint
from gym_ray.token_id_capture.staging import CallRecord, CaptureLedgerCommit

__all__ = ["asked_at", "commit_of_turn"]

_TOKENS_PER_TURN = 10


def asked_at(turn: int) -> list[dict[str, Any]]:
    """Return the items of the request of a turn, counted from 0: all turns before it, and its question."""
    items: list[dict[str, Any]] = []
    for number in range(turn):
        items += [_question(number), _answer(number)]
    return [*items, _question(turn)]


def commit_of_turn(
    turn: int, rollout_id: str = "r1", *, call_id: str | None = None, tokens: str = "", **changed: Any
) -> CaptureLedgerCommit:
    """Return the commit of a turn, counted from 0, whose parent is the turn before.

    Args:
        turn: The turn.
        rollout_id: The rollout.
        call_id: Id of the call; ``c<turn>`` if None.
        tokens: Another text stands for other tokens of the same words.
        **changed: Members of the commit's record to replace.
    """
    call_id = call_id or f"c{turn}"
    items, answer = asked_at(turn), [_answer(turn)]
    key = f"{rollout_id}/{call_id}"
    record = {
        "model_call_id": call_id,
        "parent_call_id": f"c{turn - 1}" if turn else None,
        "prev_len": turn * _TOKENS_PER_TURN,
        "delta_len": _TOKENS_PER_TURN,
        "cum_len": (turn + 1) * _TOKENS_PER_TURN,
        "weight_version": 3,
        "digest": _hex(f"digest {key} {tokens}"),
        "extras_digest": _hex("no extras"),
        "staging_key": key,
        "mode": "token_in" if turn else "text",
        "chain_hash": _hex(f"chain {turn} {tokens}"),
        "cumulative_hash": _hex(f"cumulative {turn} {tokens}"),
        "response_id": f"resp-{call_id}",
        "admitted_at": 100.0 + turn,
        "output_fingerprint": assistant_fingerprint(answer),
        "continuation_fingerprint": assistant_fingerprint([*items, *answer]),
        "fingerprint_version": FINGERPRINT_VERSION,
        **changed,
    }
    return CaptureLedgerCommit(
        rollout_id=rollout_id,
        record=CallRecord(**record),
        staging_chain=[*(f"{rollout_id}/c{number}" for number in range(turn)), key],
        request_items=items,
        response_items=answer,
    )


def _question(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"question {number}"}


def _answer(number: int) -> dict[str, Any]:
    return {"role": "assistant", "content": f"answer {number}"}


def _hex(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
