from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ray.dialects import CHAT, DIALECT_BY_PATH, RESPONSES
from gym_ray.dialects.reassembly import reassemble
from gym_ray.dialects.sse import Event, EventScanner, WholeEvents, blank_lines, cut_events, parse_objects
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


def events_of(chunks: list[bytes]) -> list[tuple[str, bytes]]:
    scanner = EventScanner()
    events = [event for chunk in chunks for event in scanner.feed(chunk)]
    return [(event.name, event.data) for event in [*events, *scanner.close()]]


def events_line_by_line(body: bytes, *, last_needs_its_blank_line: bool = False) -> list[tuple[str, bytes]]:
    """The grammar written down as plainly as it can be: one line after the other."""
    lines = body.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    found: list[tuple[str, bytes]] = []
    name: bytes | None = None
    data: list[bytes] | None = None
    for number, line in enumerate([*lines, b""], 1):
        at_end = number > len(lines) - 1  # what stands behind the last line end is no line
        if not line and (name is not None or data is not None) and not (at_end and last_needs_its_blank_line):
            found.append(((name or b"").decode("utf-8", "replace").strip(), b"\n".join(data or [])))
            name, data = None, None
        elif line.startswith(b"data:"):
            data = [*(data or []), line[5:].removeprefix(b" ")]
        elif line.startswith(b"event:"):
            name = line[6:]
    return found


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
    assert b"".join(data for _, data in whole)
    assert whole == events_line_by_line(body)
    for at in range(len(body) + 1):
        assert events_of(cut(body, [at])) == whole


@pytest.mark.parametrize(("dialect", "body"), recorded_streams(of_dialects_only=True))
def test_recorded_terminal_event_is_found_with_its_last_byte(dialect: str, body: bytes) -> None:
    end = len(body.rstrip(b"\n")) + 2
    for at in range(end - 40, len(body) + 1):
        scanner = TerminalScanner(dialect)
        assert scanner.feed(body[:at]) == ("complete" if at >= end else None)
        assert scanner.feed(body[at:]) == "complete"


@pytest.mark.parametrize(("dialect", "body"), recorded_streams())
@pytest.mark.parametrize("ending", [b"\r\n", b"\r"])
def test_line_ends_make_no_difference(dialect: str, body: bytes, ending: bytes) -> None:
    other = body.replace(b"\n", ending)
    whole = events_of([other])
    assert whole == events_of([body])
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
    assert events_of(cut(body, at)) == events_of([body]) == events_line_by_line(body)
    ended = events_line_by_line(body, last_needs_its_blank_line=True)
    for dialect in DIALECT_BY_PATH.values():
        one_by_one = (classify(dialect, Event(name.encode(), data)) for name, data in ended)
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
def test_an_event_ends_with_the_first_byte_that_makes_a_blank_line(blank: bytes) -> None:
    line = b"data: 1"
    text = line + blank + line + blank
    first, last = blank_lines(b"", text)
    assert first == next(n for n in range(len(text)) if EventScanner().feed(text[:n]))
    assert last - first == len(line + blank)
    for at in range(1, len(text)):
        ends = [blank_lines(text[at - 1 : at], text[at:]), blank_lines(b"", text[:at])]
        assert {at + end for end in ends[0] if end} | {end for end in ends[1] if end} >= {last}


def test_mark_of_byte_order_counts_only_at_the_start() -> None:
    bom = b"\xef\xbb\xbf"
    assert events_of([bom[:1], bom[1:] + b"data: 1\n\n" + bom + b"data: 2\n\n"]) == [("", b"1")]
    assert events_of([bom + b"\ndata: 1\n\n"]) == [("", b"1")]
    assert terminal_of(CHAT, [bom[:2], bom[2:] + b"data: [DONE]\n\n"]) == "complete"
    for before in (b"data: {}\n\n", b"\n\n", b"data: [DONE\n\n"):
        assert terminal_of(CHAT, [before + bom + b"data: [DONE]\n\n"]) is None
    ended = bom + b'data: {"type":"response.completed","response":{"id":"r","output":[1]}}\n\n'
    assert reassemble(RESPONSES, ended) == {"id": "r", "output": [1]}
    assert reassemble(RESPONSES, b"data: {}\n\n" + ended) is None


def test_other_line_boundaries_are_ordinary_characters() -> None:
    text = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg"
    ((_, data),) = events_of([f"data: {text}\n\n".encode()])
    assert data.decode() == text


def test_lines_of_one_event_are_joined_and_the_rest_ignored() -> None:
    text = b"\n\nid: 3\nretry: 900\nfoo: bar\n: c\nevent: a\nevent:  b \ndata:1\ndata:  2\ndata\n\n"
    assert events_of([text]) == [("b", b"1\n 2")]
    assert list(cut_events(text)) == [(b"  b ", b"1\n 2")]


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
def test_one_huge_event_is_read_piece_by_piece(piece: int) -> None:
    body = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"a" * 2**24 + b'"}}]}\n\ndata: [DONE]\n\n'
    chunks = [body[start : start + piece] for start in range(0, len(body), piece)]
    scanner, terminal = EventScanner(), TerminalScanner(CHAT)
    for chunk in chunks[:-1]:  # of what is pending, a feed sees only these few last bytes
        assert scanner.feed(chunk) == []
        assert len(scanner._whole._before) == 1
        assert terminal.feed(chunk) is None
        assert len(terminal._tail) < 32
    for kept in (scanner._whole._open, terminal._open):  # and keeps the very chunks
        assert all(mine is chunk for mine, chunk in zip(kept, chunks[:-1], strict=True))
    huge, done = [*scanner.feed(chunks[-1]), *scanner.close()]
    assert (huge.done, done.done) == (False, True)
    assert len(huge.data) > 2**24
    assert terminal.feed(chunks[-1]) == "complete"
    assert terminal._open == []


def test_no_more_than_the_open_event_is_held() -> None:
    whole = WholeEvents()
    event = b"data: " + b"x" * 1000 + b"\n\n"
    for _ in range(100):
        assert whole.feed(event + event[:10]) == event
        assert sum(map(len, whole._open)) == 10
        assert whole.feed(event[10:]) == event
        assert sum(map(len, whole._open)) == 0
