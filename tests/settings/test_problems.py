from __future__ import annotations

import pytest

from gym_ray.errors import SettingsError
from gym_ray.settings.problems import combine, did_you_mean, is_secret_key, show


@pytest.mark.parametrize(
    "name",
    ["policy_api_key", "api-key", "OPENAI_API_KEY", "HF_TOKEN", "password", "Authorization", "client_secret", "key"],
)
def test_secret_names(name: str) -> None:
    assert is_secret_key(name)


@pytest.mark.parametrize("name", ["max_output_tokens", "keyboard", "model_name", "monkey", "replicas"])
def test_names_that_are_not_secret(name: str) -> None:
    assert not is_secret_key(name)


def test_hints() -> None:
    assert did_you_mean("limt", ["limit", "verbose"]) == "did you mean 'limit'?"
    assert did_you_mean("x", ["b", "a", "a"]) == "known: a, b"
    assert did_you_mean("x", []) == ""


def test_values_in_messages() -> None:
    assert show("x" * 200, ("a",), []) == "'" + "x" * 79 + "…"
    assert show({"token": "abc"}, ("a",), ["hidden"]) == "{'token': 'abc'}"
    assert show(["a hidden b"], ("a",), ["hidden"]) == "the value (secret, not shown)"
    assert show("abc", ("a", "api_key", 0), []) == "the value (secret, not shown)"


def test_several_mistakes_are_one_error_with_a_line_each() -> None:
    first, second = SettingsError("f", "a", "wrong"), SettingsError("f", "b", "wrong", "do c")
    assert combine([first]) is first
    assert combine([first, first]) is first
    assert str(combine([first, second, first])) == "f: a: wrong\nf: b: wrong; do c"
    assert str(combine([second, first])) == "f: b: wrong; do c\nf: a: wrong"
