from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.errors import ForeignKeyError
from gym_ray.token_id_capture.staging.parquet.segments.keys import SegmentKey, parse_key
from gym_ray.token_id_capture.staging.parquet.segments.layout import SegmentName

STORE, WRITER = "0011223344556677", "0123456789abcdef0123"
KEY = SegmentKey(STORE, "default", WRITER, 12, 3, 4, "deadbeef")
TEXT = f"gr1:{STORE}:default:{WRITER}-12:3.4:deadbeef"


def test_a_key_is_text_and_back() -> None:
    assert str(KEY) == TEXT
    assert parse_key(TEXT) == KEY
    assert KEY.segment == SegmentName("default", WRITER, 12, "calls")


@given(
    st.from_regex(r"[0-9a-f]{16}", fullmatch=True, alphabet=st.characters(codec="ascii")),
    st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,20}", fullmatch=True, alphabet=st.characters(codec="ascii")),
    st.from_regex(r"[0-9a-f]{20}", fullmatch=True, alphabet=st.characters(codec="ascii")),
    st.integers(0, 10**12),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.from_regex(r"[0-9a-f]{8}", fullmatch=True, alphabet=st.characters(codec="ascii")),
)
def test_every_key_survives_being_text(
    store: str, partition: str, writer: str, seq: int, row_group: int, row: int, digest8: str
) -> None:
    key = SegmentKey(store, partition, writer, seq, row_group, row, digest8)
    assert parse_key(str(key)) == key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "r1/c1",
        TEXT.replace("gr1", "gr2"),
        TEXT.upper(),
        TEXT + "\n",
        TEXT[:-1],
        TEXT.replace("-12", "-012"),
        TEXT.replace(":3.4", ":3,4"),
        TEXT.replace(":3.4", ":-3.4"),
        TEXT.replace("default", "a/b"),
    ],
)
def test_other_texts_are_no_keys(text: str) -> None:
    with pytest.raises(ValueError, match="no staging key"):
        parse_key(text)


def test_a_key_of_another_store_names_both() -> None:
    KEY.require_store(STORE, "/data")
    with pytest.raises(ForeignKeyError) as raised:
        KEY.require_store("8899aabbccddeeff", "/data/staging")
    for part in (STORE, "8899aabbccddeeff", "/data/staging", TEXT):
        assert part in str(raised.value)
