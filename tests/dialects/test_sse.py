from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ray.dialects import CHAT, DIALECT_BY_PATH, MESSAGES
from gym_ray.dialects.reassembly import reassemble
from gym_ray.dialects.sse import Event, EventScanner, parse_objects
from gym_ray.dialects.terminal import TerminalScanner, classify

RECORDINGS = Path(__file__).parents[1] / "recordings"


def recorded_streams(*, of_dialects_only: bool = False) -> list[Any]:
    found = []
    for path in sorted(RECORDINGS.glob("*/*.json")):
        recording = json.loads(path.read_text("utf-8"))
        if of_dialects_only and recording["path"] not in DIALECT_BY_PATH:
            continue
        if "event-stream" in str(recording["headers"].get("content-type")):
            dialect = DIALECT_BY_PATH.get(recording["path"], CHAT)  # completions are framed like chat
            found.append(pytest.param(dialect, recording["body"].encode("utf-8"), id=f"{path.parent.name}-{path.stem}"))
    assert len(found) >= 9, "the recordings of the engines' streams are missing"
    return found


class Seen(NamedTuple):
    name: str
    data: bytes
    end: int


def seen(events: list[Event]) -> list[Seen]:
    return [Seen(event.name, event.data, event.end) for event in events]


def events_of(chunks: list[bytes]) -> list[Seen]:
    scanner = EventScanner()
    events = [event for chunk in chunks for event in scanner.feed(chunk)]
    return seen([*events, *scanner.close()])


def cut(body: bytes, at: list[int]) -> list[bytes]:
    borders = [0, *sorted(at), len(body)]
    return [body[start:end] for start, end in itertools.pairwise(borders)]


def terminal_of(dialect: str, chunks: list[bytes]) -> str | None:
    scanner = TerminalScanner(dialect)
    for chunk in chunks:
        scanner.feed(chunk)
    return scanner.terminal


@pytest.mark.parametrize(("dialect", "body"), recorded_streams())
def test_recorded_streams_do_not_depend_on_one_cut(dialect: str, body: bytes) -> None:
    whole = events_of([body])
    assert len(whole) > 2
    assert b"".join(event.data for event in whole)
    for at in range(len(body) + 1):
        assert events_of(cut(body, [at])) == whole


@pytest.mark.parametrize(("dialect", "body"), recorded_streams(of_dialects_only=True))
def test_recorded_terminal_event_is_found_with_its_last_byte(dialect: str, body: bytes) -> None:
    end = events_of([body])[-1].end
    for at in range(end - 40, len(body) + 1):
        scanner = TerminalScanner(dialect)
        assert scanner.feed(body[:at]) == ("complete" if at >= end else None)
        assert scanner.feed(body[at:]) == "complete"


@pytest.mark.parametrize(("dialect", "body"), recorded_streams())
@pytest.mark.parametrize("ending", [b"\r\n", b"\r"])
def test_line_ends_make_no_difference(dialect: str, body: bytes, ending: bytes) -> None:
    other = body.replace(b"\n", ending)
    plain = [(event.name, event.data) for event in events_of([body])]
    assert [(event.name, event.data) for event in events_of([other])] == plain
    whole = events_of([other])
    for at in range(0, len(other) + 1, 7):
        assert events_of(cut(other, [at])) == whole
    assert events_of([other[i : i + 1] for i in range(len(other))]) == whole
    assert reassemble(dialect, other) == reassemble(dialect, body)


@given(
    raw=st.lists(
        st.sampled_from(
            [b"data:", b"data: ", b"event: ", b"x", b"\n", b"\r", b"\r\n", b" ", b"\xef\xbb\xbf", b"\xe2\x80\xa8",
             b": c", b'{"type":"error"}', b"[DONE]", b"message_stop", b"\x00", b"\xff", b"id: 3", b"retry",
             b"data: [DONE]\n\n", b"event: message_stop\n\n", b'data: {"type":"\\u0065rror"}\n\n']
        ),
        max_size=40,
    ),
    data=st.data(),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_any_bytes_cut_anywhere_give_the_same_events(raw: list[bytes], data: st.DataObject) -> None:
    body = b"".join(raw)
    at = data.draw(st.lists(st.integers(0, len(body)), max_size=8))
    assert events_of(cut(body, at)) == events_of([body])
    for dialect in DIALECT_BY_PATH.values():
        one_by_one = (classify(dialect, event) for event in EventScanner().feed(body))
        expected = next((kind for kind in one_by_one if kind is not None), None)
        assert terminal_of(dialect, [body]) == expected
        assert terminal_of(dialect, cut(body, at)) == expected


@given(data=st.data(), index=st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_recorded_streams_in_random_pieces(data: st.DataObject, index: int) -> None:
    streams = recorded_streams()
    dialect, body = streams[index % len(streams)].values
    pieces = cut(body, data.draw(st.lists(st.integers(0, len(body)), max_size=60)))
    assert events_of(pieces) == events_of([body])
    assert terminal_of(dialect, pieces) == terminal_of(dialect, [body])


@pytest.mark.parametrize("blank", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n"])
def test_end_is_just_behind_the_blank_line(blank: bytes) -> None:
    first, second = events_of([b"data: 1" + blank + b"data: 2" + blank])
    assert (b"data: 1" + blank)[: first.end].rstrip(b"\r\n") == b"data: 1"
    assert EventScanner().feed(b"data: 1" + blank[: first.end - 7])[0].data == b"1"
    assert second.end - first.end == len(b"data: 2" + blank)


def test_mark_of_byte_order_counts_only_at_the_start() -> None:
    bom = b"\xef\xbb\xbf"
    assert [e.data for e in events_of([bom[:1], bom[1:] + b"data: 1\n\n" + bom + b"data: 2\n\n"])] == [b"1"]
    assert events_of([bom + b"\ndata: 1\n\n"])[0].data == b"1"


def test_other_line_boundaries_are_ordinary_characters() -> None:
    text = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg"
    (event,) = events_of([f"data: {text}\n\n".encode()])
    assert event.data.decode() == text


def test_lines_of_one_event_are_joined_and_the_rest_ignored() -> None:
    (event,) = events_of([b"\n\nid: 3\nretry: 900\nfoo: bar\n: c\nevent: a\nevent:  b \ndata:1\ndata:  2\ndata\n\n"])
    assert (event.name, event.data) == ("b", b"1\n 2")


def test_last_event_without_blank_line_comes_with_the_close() -> None:
    scanner = EventScanner()
    assert scanner.feed(b'data: {"n": 2}') == []
    assert [event.data for event in scanner.close()] == [b'{"n": 2}']
    assert scanner.close() == []


def test_payloads_that_fast_parsers_lose() -> None:
    body = b'data: {"n": 18446744073709551616}\n\ndata: {"t": "\\ud83d"}\n\ndata: {"f": NaN, "t": "\xff"}\n\n'
    big, lone, odd = parse_objects(body)
    assert big == {"n": 2**64}
    assert lone == {"t": "\ud83d"}
    assert odd["f"] != odd["f"]
    assert odd["t"] == "\ufffd"
    deep = b"[" * 100_000 + b"]" * 100_000
    assert parse_objects(b'data: {"a": ' + deep + b'}\n\ndata: {"n": 1}\n\n') == [{"n": 1}]


@pytest.mark.parametrize("piece", [4096, 16384, 65536])
def test_one_huge_event_is_gone_through_once(piece: int) -> None:
    body = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"a" * 2**24 + b'"}}]}\n\ndata: [DONE]\n\n'
    scanner = EventScanner()
    events = []
    for start in range(0, len(body), piece):
        events += scanner.feed(body[start : start + piece])
        if not events:  # nothing but the new piece was touched, however much is pending
            assert scanner.bytes_examined == min(start + piece, len(body))
    assert [event.done for event in events] == [False, True]
    assert len(events[0].data) > 2**24
    assert scanner.bytes_examined <= len(body) + 2 * piece  # lines cut at the border of a piece are put together


def test_pending_pieces_are_not_copied() -> None:
    scanner = TerminalScanner(MESSAGES)
    chunks = [bytes(4096) for _ in range(64)]
    for chunk in chunks:
        scanner.feed(chunk)
    assert all(kept is chunk for kept, chunk in zip(scanner._scanner._partial, chunks, strict=True))
