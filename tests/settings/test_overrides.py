from __future__ import annotations

from typing import Any

import pytest

from gym_ray.errors import SettingsError
from gym_ray.settings.overrides import apply_overrides, deep_merge, parse_override

BASE = {"a": 1, "m": {"x": 1, "y": [1, 2]}}


def merged(*tokens: str) -> dict[str, Any]:
    return apply_overrides(BASE, [parse_override(token) for token in tokens])[0]


def mistake(*tokens: str) -> str:
    with pytest.raises(SettingsError) as caught:
        merged(*tokens)
    return str(caught.value)


@pytest.mark.parametrize(
    ("tokens", "changed"),
    [
        (["a=2"], {"a": 2}),
        (["+a=2"], {"a": 2}),
        (["++a=2"], {"a": 2}),
        (["++b=2", "b=3"], {"b": 3}),
        (["m.x=2"], {"m": {"x": 2, "y": [1, 2]}}),
        (["++m.z.q=2"], {"m": {"x": 1, "y": [1, 2], "z": {"q": 2}}}),
        (["++m={x: 5}"], {"m": {"x": 5, "y": [1, 2]}}),
        (["++m.y=[9]"], {"m": {"x": 1, "y": [9]}}),
        (["++m.y.1=9"], {"m": {"x": 1, "y": [1, 9]}}),
        (["~m.x"], {"m": {"y": [1, 2]}}),
        (["~m.x=1"], {"m": {"y": [1, 2]}}),
        (["++a.b=1"], {"a": {"b": 1}}),
        (["+c={x: 1}", "+c={y: 2}"], {"c": {"x": 1, "y": 2}}),
        (["+c.x=1", "+c.y=2"], {"c": {"x": 1, "y": 2}}),
        (["++c={1: x}"], {"c": {"1": "x"}}),
        (["++c=1_000"], {"c": 1000}),
        (["++c=TRUE"], {"c": True}),
        (["++c=yes"], {"c": "yes"}),
        (["++c=http://h:1/v1"], {"c": "http://h:1/v1"}),
        (["++c='a=b,c'"], {"c": "a=b,c"}),
    ],
)
def test_effect(tokens: list[str], changed: dict[str, Any]) -> None:
    assert merged(*tokens) == BASE | changed
    assert BASE == {"a": 1, "m": {"x": 1, "y": [1, 2]}}


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["b=2"], "command line: b: cannot be changed, it is not set; write ++b=… to add it"),
        (
            ["m.xx=2"],
            "command line: m.xx: cannot be changed, it is not set; write ++m.xx=… to add it; did you mean 'x'?",
        ),
        (["~b"], "command line: b: cannot be removed, it is not set; known: a, m"),
        (["~a=2"], "command line: a: has another value than ~ names; leave =… out"),
        (["~m.y.0"], "command line: m.y.0: an item of a list cannot be removed; give the list"),
        (["+b=1", "+b=2"], "command line: b: added twice with +; pass it once, or replace it with ++b=…"),
        (["++b=1", "+b=2"], "command line: b: added twice with +; pass it once, or replace it with ++b=…"),
        (["+b=[1]", "+b=[2]"], "command line: b: added twice with +; pass it once, or replace it with ++b=…"),
        (["++m.y.5=1"], "command line: m.y.5: '5' is no position in a list of 2; give the whole list: ++key=[a,b]"),
        (["++m.y.z=1"], "command line: m.y.z: 'z' is no position in a list of 2; give the whole list: ++key=[a,b]"),
        (["limit"], "command line: limit: the override cannot be parsed; write ++key=value"),
        (["++=3"], "command line: ++: not a dotted key; write ++section.key=value"),
        (["k@p=1"], "command line: k@p: not a dotted key; write ++section.key=value"),
    ],
)
def test_mistakes(tokens: list[str], message: str) -> None:
    assert mistake(*tokens) == message


@pytest.mark.parametrize(
    "token", ["++k=a=b", "++k=1,2", "++k=[1", "++k={a: 1", "++k='x", "++k=choice(1,2)", "++k=f(", "++k=int(x)"]
)
def test_values_that_need_quotes(token: str) -> None:
    remedy = "write ++key=value, lists as ++key=[a,b], and quote a value that holds = , { } [ ] or quotes: ++key='…'"
    assert mistake(token) == f"command line: ++k: the override cannot be parsed; {remedy}"


def test_a_secret_in_a_bad_token_is_not_shown() -> None:
    assert "hidden" not in mistake("++policy_api_key=sk=hidden,1")
    assert "hidden" not in mistake("+policy_api_key=sk-hidden", "+policy_api_key=sk-hidden2")


def test_what_stems_from_the_command_line() -> None:
    _, own = apply_overrides(BASE, [parse_override(token) for token in ("m.x=2", "++n=1", "~a", "++q=1", "~q")])
    assert own == {"m": {"x": 2}, "n": 1}


def test_merging_shares_nothing() -> None:
    low, high = {"m": {"l": [1]}}, {"m": {"k": [2]}}
    result = deep_merge(low, high)
    result["m"]["l"].append(9)
    result["m"]["k"].append(9)
    assert (low, high) == ({"m": {"l": [1]}}, {"m": {"k": [2]}})
