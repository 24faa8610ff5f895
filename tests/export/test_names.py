from __future__ import annotations

import posixpath
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.export.names import mlflow_name


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        ("mean/reward", "mean/reward"),
        ("a//b/", "a/b"),
        ("/a", "a"),
        ("./a", "_/a"),
        ("..", "__"),
        ("", None),
        ("///", None),
        ("k" * 250, "k" * 250),
        ("k" * 100 + "@" + "n" * 200, "k" * 100 + "_at_" + "n" * 20 + "___" + "n" * 123),
    ],
)
def test_names_are_spelled_as_the_tracker_takes_them(name: str, spelled: str | None) -> None:
    assert mlflow_name(name) == spelled


@given(st.one_of(st.text(max_size=400), st.text(alphabet="a./@ ", max_size=400)))
def test_any_name_is_taken_or_dropped_and_stays_once_it_is_spelled(name: str) -> None:
    spelled = mlflow_name(name)
    if spelled is None:
        assert not name.strip("/")
        return
    assert len(spelled) <= 250
    assert re.fullmatch(r"[/\w.\- :]+", spelled)
    assert posixpath.normpath(spelled) == spelled
    assert not spelled.startswith(("..", "/"))
    assert mlflow_name(spelled) == spelled
