from __future__ import annotations

import pickle

import pytest

from gym_ray.testing.token_source import call_entry
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.protocols import CaptureProblem, TokenCaptureSnapshot, TokenSink, TokenSource
from gym_ray.token_id_capture.reasons import UNPACKABLE_RECORD
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.store import TokenCaptureStore

ENTRY = call_entry("c0", [1, 2], [3])


def snapshot(*entries: TokenEntry | PackedEntry, incomplete: bool = False) -> TokenCaptureSnapshot:
    return TokenCaptureSnapshot("3-1", entries, incomplete, "s", 4, [CaptureProblem("lost", "c9")])


def test_lists_and_arrays_are_the_same_records() -> None:
    from_lists, from_arrays = snapshot(ENTRY), snapshot(PackedEntry.of_entry(ENTRY))
    assert from_lists.entries == from_arrays.entries == (ENTRY,)
    assert [packed.entry() for packed in from_lists.packed] == [ENTRY]
    assert from_lists == from_arrays
    assert from_lists != snapshot(ENTRY, incomplete=True)
    assert from_lists != "snapshot"


def test_a_snapshot_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        snapshot(ENTRY).incomplete = True  # type: ignore[misc]
    with pytest.raises(TypeError, match="unhashable"):
        hash(snapshot(ENTRY))


def test_a_snapshot_has_an_id() -> None:
    with pytest.raises(ValueError, match="3-1: a snapshot needs an id"):
        TokenCaptureSnapshot("3-1", [], False, "", 1)


def test_a_record_that_no_array_holds_is_named_and_kept_as_it_is() -> None:
    broken = ENTRY.model_copy(update={"model_call_id": "c1", "generation_log_probs": [float("nan")]})
    taken = snapshot(ENTRY, broken)
    assert [entry.model_call_id for entry in taken.entries] == ["c0", "c1"]
    assert [packed.model_call_id for packed in taken.packed] == ["c0"]
    assert taken.incomplete
    assert [(problem.reason, problem.model_call_id) for problem in taken.problems] == [
        ("lost", "c9"),
        (UNPACKABLE_RECORD, "c1"),
    ]


def test_a_snapshot_survives_pickling() -> None:
    broken = ENTRY.model_copy(update={"model_call_id": "c1", "generation_token_ids": [-1]})
    for taken in (snapshot(PackedEntry.of_entry(ENTRY)), snapshot(ENTRY, broken)):
        copy = pickle.loads(pickle.dumps(taken))
        assert copy == taken
        assert copy.problems == taken.problems


def test_a_snapshot_shows_what_it_is_about() -> None:
    assert repr(snapshot(ENTRY)) == (
        "TokenCaptureSnapshot('3-1', 1 entries, incomplete=False, snapshot_id='s', version=4, 1 problems)"
    )


def test_the_file_store_is_a_sink_and_a_source(tmp_path: object) -> None:
    store = TokenCaptureStore(str(tmp_path))
    assert isinstance(store, TokenSink)
    assert isinstance(store, TokenSource)
