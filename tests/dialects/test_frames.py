from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gym_ray import exact_json
from gym_ray.dialects.frames import event_frame, json_text, typed_frame
from gym_ray.errors import EngineError


def paired(text: str) -> str:
    """Two halves that stand side by side are one character in JSON; only a lone one stays a half."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


TEXTS = st.text(st.characters(), max_size=12).map(paired)  # lone surrogates included
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**90), 2**90) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def test_a_frame_is_lines_and_a_blank_one() -> None:
    assert event_frame({"a": [1, None]}) == b'data: {"a":[1,null]}\n\n'
    assert event_frame({}, "error") == b"event: error\ndata: {}\n\n"
    assert typed_frame("ping", n=1) == b'event: ping\ndata: {"type":"ping","n":1}\n\n'


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(VALUES)
def test_values_come_back_from_ascii_as_they_went_in(value: object) -> None:
    frame = event_frame({"v": value})
    assert frame.isascii()
    assert json.loads(frame.removeprefix(b"data: ")) == {"v": value}
    text = json_text(value)
    assert text.isascii()
    assert json.loads(text) == value


@pytest.mark.parametrize("text", ["\u2028\u2029\x85", "größe 😀 \ud83d", "a\r\nb\x00\x7f\ufeff"])
def test_no_character_of_a_text_can_end_a_line(text: str) -> None:
    frame = event_frame({"text": text})
    assert len(frame.decode("ascii").splitlines()) == 2
    assert json.loads(frame.removeprefix(b"data: "))["text"] == text


def test_numbers_without_json_become_null() -> None:
    value = {"ö": float("nan"), "n": [float("inf"), 2**70]}
    assert event_frame(value) == b'data: {"\\u00f6":null,"n":[null,1180591620717411303424]}\n\n'
    assert json_text(value) == '{"\\u00f6": null, "n": [null, 1180591620717411303424]}'


def nested(levels: int, core: object = "ö") -> object:
    for _ in range(levels):
        core = [core]
    return core


def test_what_can_be_parsed_can_be_written() -> None:
    for levels in (200, 400, 700):
        value = exact_json.loads(json.dumps(nested(levels)).encode())
        assert json.loads(event_frame({"v": value}).removeprefix(b"data: ")) == {"v": value}
        assert json.loads(json_text(value)) == value


@pytest.mark.parametrize("value", [nested(100_000), nested(700, float("nan"))], ids=["deep", "deep and not a number"])
def test_what_is_too_deep_is_an_error_of_the_engine(value: object) -> None:
    for write in (json_text, lambda deep: event_frame({"v": deep})):
        with pytest.raises(EngineError, match="nests too deeply") as raised:
            write(value)
        assert raised.value.status == 502
