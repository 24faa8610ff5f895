"""Notes of rollouts that began anew: one that nobody can read mixes no two uses of an id."""

from __future__ import annotations

import secrets

import pytest

from gym_ray.errors import CaptureError
from gym_ray.model_call_capture.segments.layout import cleared_name
from gym_ray.model_call_capture.segments.reading_cleared import Cleared, read_cleared, write_cleared
from gym_ray.storage.opening import open_store
from gym_ray.storage.store import SegmentStore


@pytest.fixture
def own() -> SegmentStore:
    return open_store(f"memory://cleared-{secrets.token_hex(6)}")


def test_a_note_is_read_as_it_was_written_and_the_last_one_counts(own: SegmentStore) -> None:
    assert read_cleared(own, "0-0") is None
    for note in (Cleared({"a": 1}, 5.0), Cleared({"a": 3, "b": None}, 6.0, frozenset({"a"}))):
        write_cleared(own, "0-0", note)
        assert read_cleared(own, "0-0") == note
    assert read_cleared(own, "0-0-a1") is None


@pytest.mark.parametrize("note", [b"", b"{}", b"[]", b'{"writers": []}', b'{"writers": {}, "cleared_at": "5"}', b"{"])
def test_a_damaged_note_is_an_error_and_never_no_note(own: SegmentStore, note: bytes) -> None:
    own.publish(cleared_name("0-0"), note)
    with pytest.raises(CaptureError, match="damaged; nobody knows which records of 0-0 are of before"):
        read_cleared(own, "0-0")


@pytest.mark.parametrize(
    ("writer", "seq", "started_at", "verdict"),
    [
        ("told", 3, 1.0, "dropped"),
        ("told", 4, 1.0, "ours"),
        ("gone", 99, 1.0, "dropped"),
        ("silent", 2, 1.0, "dropped"),
        ("silent", 3, 1.0, "doubtful"),
        ("unseen", 1, 4.0, "doubtful"),
        ("unseen", 1, 5.0, "doubtful"),
        ("unseen", 1, None, "doubtful"),
        ("later", 1, 5.5, "ours"),
    ],
)
def test_what_is_not_known_to_be_of_now_is_left_out(
    writer: str, seq: int, started_at: float | None, verdict: str
) -> None:
    cleared = Cleared({"told": 3, "gone": None, "silent": 2}, 5.0, frozenset({"silent"}))
    assert cleared.verdict(writer, seq, started_at) == verdict
