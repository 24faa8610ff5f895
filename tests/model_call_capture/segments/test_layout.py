"""What segments are called and what is in them, whole and damaged in every way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.errors import CaptureError, RolloutIdError
from gym_ray.model_call_capture.registry import dead_name, own_place, writer_name
from gym_ray.model_call_capture.segments.layout import (
    TRAILER_BYTES,
    NeedMore,
    SegmentIndex,
    cleared_name,
    decode_segment,
    encode_segment,
    mark_name,
    parse_segment_name,
    read_index,
    record_problem,
    segment_name,
    segments_of,
)

RECORDS = [("0-0", "a" * 32, b'{"n":1}\n'), ("0-1", "b" * 32, b'{"n":"\xc3\xa4"}\n'), ("0-0", "c" * 32, b"{}\n")]
NAME = segment_name("policy-01", 7)
SEGMENT = encode_segment("policy-01", 7, RECORDS)

records = st.lists(
    st.tuples(
        st.from_regex(r"[a-z0-9-]{1,12}", fullmatch=True),
        st.from_regex(r"[0-9a-f]{32}", fullmatch=True),
        st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"") + b"\n"),
    ),
    max_size=8,
)


def test_names() -> None:
    assert segment_name("policy-01", 7) == "segments/policy-01/00000007.jsonl"
    assert segment_name("w", 123456789) == "segments/w/123456789.jsonl"
    assert segments_of("w") == "segments/w/"
    assert mark_name("0-1") == "marks/0-1.json"
    assert writer_name("w") == "writers/w.json"
    assert dead_name("w") == "dead/w.json"
    assert cleared_name("u") == "cleared/u.json"
    assert own_place("s3://bucket/a/") == "s3://bucket/a/.gym-ray"
    with pytest.raises(RolloutIdError):
        mark_name("a/b")


@pytest.mark.parametrize(
    "name",
    ["segments/w/1.jsonl", "segments/w/000000001.jsonl", "segments/00000001.jsonl", "marks/0-0.json", NAME + ".tmp"],
)
def test_other_names_are_no_segments(name: str) -> None:
    assert parse_segment_name(name) is None


@given(seq=st.integers(1, 10**12))
def test_a_name_says_writer_and_number(seq: int) -> None:
    assert parse_segment_name(segment_name("policy-01", seq)) == ("policy-01", seq)


@given(given_records=records, seq=st.integers(1, 10**9))
def test_what_was_written_is_read(given_records: list[tuple[str, str, bytes]], seq: int) -> None:
    name = segment_name("w", seq)
    data = encode_segment("w", seq, given_records)
    index, lines = decode_segment(data, name=name)
    assert (index.writer_id, index.seq) == ("w", seq)
    assert [(record.rollout_id, record.call_id) for record in index.records] == [entry[:2] for entry in given_records]
    assert lines == [line for _, _, line in given_records]
    assert data.startswith(b"".join(lines))  # type: ignore[arg-type]
    for record, (_, _, line) in zip(index.records, given_records, strict=True):
        assert data[record.offset : record.offset + record.length] == line


@given(given_records=records, have=st.integers(0, 400))
def test_an_end_of_any_length_leads_to_the_index(given_records: list[tuple[str, str, bytes]], have: int) -> None:
    data = encode_segment("w", 1, given_records)
    have, asked = min(have, len(data)), 0
    read = read_index(data[len(data) - have :], len(data), name=segment_name("w", 1))
    while isinstance(read, NeedMore):
        assert have < read.length <= len(data)
        have, asked = read.length, asked + 1
        read = read_index(data[len(data) - have :], len(data), name=segment_name("w", 1))
    assert isinstance(read, SegmentIndex)
    assert asked <= 2
    assert len(read.records) == len(given_records)


def test_a_segment_that_was_cut_anywhere_is_named() -> None:
    for size in range(len(SEGMENT)):
        with pytest.raises(CaptureError, match=f"^{NAME}: damaged segment: "):
            decode_segment(SEGMENT[:size], name=NAME)


def test_a_segment_that_lost_its_beginning_is_named() -> None:
    for start in range(1, len(SEGMENT)):
        with pytest.raises(CaptureError, match=f"^{NAME}: damaged segment: "):
            decode_segment(SEGMENT[start:], name=NAME)


def test_every_flipped_bit_is_found() -> None:
    whole = [line for _, _, line in RECORDS]
    index_at = sum(map(len, whole))
    for place in range(len(SEGMENT)):
        for bit in range(8):
            damaged = bytearray(SEGMENT)
            damaged[place] ^= 1 << bit
            if place >= index_at:
                with pytest.raises(CaptureError, match=f"^{NAME}: damaged segment: "):
                    decode_segment(bytes(damaged), name=NAME)
                continue
            _, lines = decode_segment(bytes(damaged), name=NAME)
            kept = [line for line, original in zip(lines, whole, strict=True) if line == original]
            assert lines.count(None) == 1  # the others are untouched
            assert len(kept) == len(whole) - 1


def test_damage_of_a_record_names_its_call() -> None:
    index, lines = decode_segment(SEGMENT, name=NAME)
    record, line = index.records[1], lines[1]
    assert line is not None
    assert record_problem(line, record) == ""
    assert record_problem(line[:-1], record) == f"call {'b' * 32}: {len(line) - 1} bytes of a line of {len(line)}"
    assert record_problem(line[:-2] + b"x\n", record) == f"call {'b' * 32}: the checksum of its line is wrong"


def test_a_segment_under_another_name_is_refused() -> None:
    with pytest.raises(CaptureError, match="its index is that of segment 7 of policy-01"):
        decode_segment(SEGMENT, name=segment_name("policy-01", 8))
    with pytest.raises(CaptureError, match="its index is that of segment 7 of policy-01"):
        decode_segment(SEGMENT, name=segment_name("other", 7))


@pytest.mark.parametrize("line", [b"", b"{}", b"{}\n\n", b"{\n}\n"])
def test_what_is_not_one_line_cannot_be_written(line: bytes) -> None:
    with pytest.raises(ValueError, match=f"the record of call {'d' * 32} is not one line"):
        encode_segment("w", 1, [("0-0", "d" * 32, line)])


def with_index(index: bytes) -> bytes:
    import google_crc32c

    index += b"\n"
    return index + b"%013x %08x %08x\n" % (0, len(index), google_crc32c.value(index))


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        (b"[]", "its index is none of version 1"),
        (b'{"gym_ray_segment":2}', "its index is none of version 1"),
        (b'{"gym_ray_segment":1,"writer":"policy-01","seq":7}', "its index lacks the writer, the number"),
        (b'{"gym_ray_segment":1,"writer":"policy-01","seq":7,"records":[["a","b",0,true,1]]}', "an entry of its index"),
        (b'{"gym_ray_segment":1,"writer":"policy-01","seq":7,"records":[["a","b",0,0,1]]}', "puts call b at 0"),
        (b'{"gym_ray_segment":1,"writer":"policy-01","seq":7,"records":[["a","b",1,1,1]]}', "puts call b at 1"),
        (b'{"gym_ray_segment":1,"writer":"policy-01","seq":7,"records":[["a","b",0,9,1]]}', "its records end at 9"),
    ],
)
def test_an_index_that_cannot_be_is_named(index: bytes, problem: str) -> None:
    with pytest.raises(CaptureError, match=f"{NAME}: damaged segment: .*{problem}"):
        decode_segment(with_index(index), name=NAME)


def test_the_last_line_has_a_fixed_length() -> None:
    assert len(SEGMENT.splitlines(keepends=True)[-1]) == TRAILER_BYTES
