from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.dialects.conversion import free_text
from gym_ray.errors import UnsupportedRequestError


@given(st.text(alphabet=st.characters()))
def test_an_input_comes_back_from_its_arguments(text: str) -> None:
    assert free_text.as_input(free_text.as_arguments(text)) == text


@pytest.mark.parametrize("arguments", ["", "{bad", "[]", '{"other": 1}', '{"input": 1}', "\ud83d"])
def test_unfit_arguments_are_the_input_as_they_are(arguments: str) -> None:
    assert free_text.as_input(arguments) == arguments


def test_a_grammar_is_told_in_words() -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": "start: WORD"}
    function = free_text.as_function({"name": "patch", "description": "Edits.", "format": form}, "tools[0]")
    assert function["description"] == "Edits.\n\nThe input must follow this lark grammar:\nstart: WORD"
    assert "description" not in free_text.as_function({"name": "patch", "format": {"type": "text"}}, "tools[0]")


def test_a_malformed_grammar_is_named() -> None:
    with pytest.raises(UnsupportedRequestError, match=r"tools\[0\]\.format\.definition"):
        free_text.as_function({"name": "p", "format": {"type": "grammar", "syntax": "lark"}}, "tools[0]")
