from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.token_id_capture.protocols import CaptureProblem
from gym_ray.token_id_capture.reasons import MARKED_INCOMPLETE
from gym_ray.token_id_capture.token_files.mark_lines import encode_mark, parse_marks

PLAIN = CaptureProblem(MARKED_INCOMPLETE, "c0")


def test_a_plain_mark_is_the_id_of_its_call() -> None:
    assert encode_mark(PLAIN) == b"c0\n"
    assert encode_mark(CaptureProblem(MARKED_INCOMPLETE)) == b"\n"


def test_a_mark_that_says_more_is_an_object() -> None:
    mark = CaptureProblem("usage_mismatch", "c0", "3 of 4\ntokens")
    assert encode_mark(mark) == b'{"detail":"3 of 4\\ntokens","model_call_id":"c0","reason":"usage_mismatch"}\n'
    assert parse_marks(encode_mark(mark)) == [mark]


@pytest.mark.parametrize("call_id", ["a\nb", "{c", "\ud800", "tab\t", "ü"])
def test_any_call_id_can_be_marked(call_id: str) -> None:
    mark = CaptureProblem(MARKED_INCOMPLETE, call_id)
    line = encode_mark(mark)
    assert line.count(b"\n") == 1
    assert parse_marks(line) == [mark]


@given(st.builds(CaptureProblem, st.text(min_size=1), st.text(), st.text()))
def test_any_mark_comes_back(mark: CaptureProblem) -> None:
    assert parse_marks(encode_mark(mark) + b"other\n") in ([mark, PLAIN_OTHER], [PLAIN_OTHER])
    if mark != CaptureProblem(MARKED_INCOMPLETE):
        assert parse_marks(encode_mark(mark)) == [mark]


PLAIN_OTHER = CaptureProblem(MARKED_INCOMPLETE, "other")


def test_a_file_of_marks_is_never_without_one() -> None:
    assert parse_marks(b"") == parse_marks(b"\n\n") == [CaptureProblem(MARKED_INCOMPLETE)]


def test_equal_marks_count_once_and_a_torn_one_still_counts() -> None:
    assert parse_marks(b"c0\nc0\n\nc1") == [PLAIN, CaptureProblem(MARKED_INCOMPLETE, "c1")]
    torn = parse_marks(b'{"detail":"","mod')
    assert torn == [CaptureProblem(MARKED_INCOMPLETE, '{"detail":"","mod')]
    assert parse_marks(b'{"reason":"","model_call_id":3}\n\xff') == [
        CaptureProblem(MARKED_INCOMPLETE, "3"),
        CaptureProblem(MARKED_INCOMPLETE, "\\xff"),
    ]
