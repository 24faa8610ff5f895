from __future__ import annotations

import json
from typing import Any

import pytest

from gym_ray.dialects.ascii_json import ascii_json


@pytest.mark.parametrize("value", [{"ö": [1, 2**70]}, ["\ud800", "a\u2028b"], {"a": {"b": None}}, "", 1.5, []])
def test_the_text_is_ascii_and_reads_back_the_same(value: Any) -> None:
    for text in (ascii_json(value), ascii_json(value, (",", ":"))):
        assert text.isascii()
        assert json.loads(text) == value


def test_what_json_has_no_number_for_is_null() -> None:
    assert (
        ascii_json({"a": float("nan"), "b": [float("inf"), 2**70]})
        == '{"a": null, "b": [null, 1180591620717411303424]}'
    )


def test_a_value_that_nests_too_deeply_is_refused() -> None:
    value: Any = 0
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ValueError, match="nested too deeply"):
        ascii_json(value)
