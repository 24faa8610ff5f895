from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.settings.interpolation import Interpolator, escape_interpolation
from gym_ray.settings.problems import dotted


def fill(tree: dict[str, Any], **environ: str) -> Interpolator:
    return Interpolator(tree, environ, lambda path: f"at {dotted(path)}")


def resolved(tree: dict[str, Any], **environ: str) -> dict[str, Any]:
    interpolator = fill(tree, **environ)
    result = interpolator.resolve()
    assert interpolator.mistakes == []
    return result


def mistakes(tree: dict[str, Any], **environ: str) -> list[str]:
    interpolator = fill(tree, **environ)
    interpolator.resolve()
    return [str(mistake) for mistake in interpolator.mistakes]


@pytest.mark.parametrize(
    ("tree", "key", "value"),
    [
        ({"a": "${b}", "b": 3}, "a", 3),
        ({"a": "x${b}y", "b": 3}, "a", "x3y"),
        ({"a": "${b.c}", "b": {"c": [1]}}, "a", [1]),
        ({"a": "${b}", "b": {"c": "${d}"}, "d": 1}, "a", {"c": 1}),
        ({"a": "${b[0]}", "b": ["${c}"], "c": "z"}, "a", "z"),
        ({"a": "${b.1}", "b": [1, 2]}, "a", 2),
        ({"a": {"x": 1, "y": "${.x}"}}, "a", {"x": 1, "y": 1}),
        ({"a": {"y": "${..b}"}, "b": 2}, "a", {"y": 2}),
        ({"a": "${b.c}", "b": "${d}", "d": {"c": 5}}, "a", 5),
        ({"a": "${${b}}", "b": "c", "c": 7}, "a", 7),
        ({"a": "${oc.env:V}"}, "a", "from env"),
        ({"a": "${oc.env:V}/x"}, "a", "from env/x"),
        ({"a": "${oc.env:NONE,fallback}"}, "a", "fallback"),
        ({"a": "${oc.env:NONE,null}"}, "a", None),
        ({"a": "${oc.env:NONE,8}"}, "a", "8"),
        ({"a": "${oc.env:NONE,${b}}", "b": "deep"}, "a", "deep"),
        ({"a": "\\${b}"}, "a", "${b}"),
        ({"a": "$b {c} $"}, "a", "$b {c} $"),
        ({"a": [{"b": "${c}"}], "c": 1}, "a", [{"b": 1}]),
    ],
)
def test_values(tree: dict[str, Any], key: str, value: object) -> None:
    assert resolved(tree, V="from env")[key] == value


def test_what_the_environment_holds_is_text_and_is_not_filled_in_again() -> None:
    assert resolved({"a": "${oc.env:V}", "b": "${a}"}, V="${x}")["b"] == "${x}"


def test_the_environment_of_the_process_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "SET_HERE", "x")
    assert mistakes({"a": "${oc.env:SET_HERE}"}) == [
        "at a: a: the environment variable SET_HERE is not set; export SET_HERE, or write ${oc.env:SET_HERE,default}"
    ]


@pytest.mark.parametrize(
    ("tree", "messages"),
    [
        ({"a": "${b}"}, ["at a: a: ${b} is not set; set b in a YAML file or pass ++b=…"]),
        (
            {"a": "${m.prot}", "m": {"port": 1}},
            ["at a: a: ${m.prot} is not set; set m.prot in a YAML file or pass ++m.prot=…; did you mean 'port'?"],
        ),
        ({"a": "${b.c}", "b": 1}, ["at a: a: ${b.c} is not set; set b.c in a YAML file or pass ++b.c=…"]),
        ({"a": "${b.7}", "b": [1]}, ["at a: a: ${b.7} is not set; set b.7 in a YAML file or pass ++b.7=…"]),
        (
            {"a": "${policy_base_url}"},
            ["at a: a: ${policy_base_url} is not set; put policy_base_url into env.yaml or pass ++policy_base_url=…"],
        ),
        ({"a": "${b}", "b": "${c}"}, ["at b: b: ${c} is not set; set c in a YAML file or pass ++c=…"] * 2),
        (
            {"a": "${b}", "b": "${a}"},
            [
                "at a: a: its interpolations go round in a circle; write one of the values out",
                "at b: b: its interpolations go round in a circle; write one of the values out",
            ],
        ),
        ({"a": {"b": "${a}"}}, ["at a.b: a.b: ${a} contains this key itself; write the value out"]),
        (
            {"a": "${b"},
            ["at a: a: not a valid interpolation; write ${key} or ${oc.env:VAR}, and \\${ for a plain ${"],
        ),
        ({"a": "${oc.decode:1}"}, ["at a: a: ${oc.decode:…} is not known; only ${oc.env:VAR} and ${key} are"]),
        (
            {"a": "${oc.env:}"},
            ["at a: a: ${oc.env:…} is not well formed; write ${oc.env:VAR} or ${oc.env:VAR,default}"],
        ),
    ],
)
def test_mistakes(tree: dict[str, Any], messages: list[str]) -> None:
    assert mistakes(tree) == messages


def test_maps_that_contain_each_other() -> None:
    assert len(mistakes({"a": {"x": "${b}"}, "b": {"y": "${a}"}})) == 2


def test_secrets_of_the_environment_are_remembered() -> None:
    interpolator = fill({"a": "${oc.env:HF_TOKEN}", "b": "${oc.env:HOME}"}, HF_TOKEN="t0", HOME="/h")
    interpolator.resolve()
    assert interpolator.secrets == {"t0"}


@given(st.text(alphabet="\\${}ab.:", max_size=20))
def test_escaped_text_fills_in_to_itself(text: str) -> None:
    assert resolved({"a": escape_interpolation(text)}) == {"a": text}


def test_an_endpoint_key_that_no_server_refers_to_may_stay_unset() -> None:
    tree = {"policy_api_key": "${oc.env:UNSET}"}
    assert mistakes(tree) == []
    assert resolved(tree) == {"policy_api_key": None}
    used = mistakes({**tree, "server": {"openai_api_key": "${policy_api_key}"}})
    assert len(used) == 1
    assert "UNSET is not set" in used[0]
