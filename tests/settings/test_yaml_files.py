from __future__ import annotations

from pathlib import Path

import pytest

from gym_ray.errors import SettingsError
from gym_ray.settings.yaml_files import parse_yaml, read_yaml

CORRECT = "; correct that line or the one before it"


def test_lines_and_places() -> None:
    layer = parse_yaml("a: 1\nb:\n  - x\n  - {c: 2}\n", "f.yaml")
    assert layer.tree == {"a": 1, "b": ["x", {"c": 2}]}
    assert layer.place(("b", 1, "c")) == "f.yaml:4"
    assert layer.place(("b", 0)) == "f.yaml:3"
    assert layer.place(("b", 2)) is None
    assert layer.place(("a", "x")) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e3", 1000.0),
        ("-1.5E-2", -0.015),
        (".5", 0.5),
        ("2026-11-30", "2026-11-30"),
        ("1_000", 1000),
        ("1.0.0", "1.0.0"),
        ("10.0.0.1", "10.0.0.1"),
        ("e3", "e3"),
        ("~", None),
        ("TRUE", True),
        ("'1e3'", "1e3"),
        ("sk-abc", "sk-abc"),
        ("${oc.env:X}", "${oc.env:X}"),
    ],
)
def test_scalars(text: str, value: object) -> None:
    found = parse_yaml(f"a: {text}\n", "f").tree["a"]
    assert (found, type(found)) == (value, type(value))


def test_anchors_and_merge_keys() -> None:
    layer = parse_yaml("base: &b {x: 1, y: 1}\nuse:\n  <<: *b\n  y: 2\n", "f.yaml")
    assert layer.tree["use"] == {"x": 1, "y": 2}
    assert layer.place(("use", "y")) == "f.yaml:4"


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null\n"])
def test_an_empty_file_has_no_settings(text: str) -> None:
    assert parse_yaml(text, "f").tree == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a: [1\n",
            "f.yaml:2: not valid YAML: expected ',' or ']', but got '<stream end>'" + CORRECT,
        ),
        (
            "a: 1\n b: 2\n",
            "f.yaml:2: not valid YAML: mapping values are not allowed here; correct that line or the one before it",
        ),
        (
            "a: 1\nb: 2\na: 3\n",
            "f.yaml:3: not valid YAML: the key 'a' is given twice; correct that line or the one before it",
        ),
        (
            "a: 1\n---\nb: 2\n",
            "f.yaml:2: not valid YAML: an alias is not defined, an anchor is defined twice, "
            "or there is a second document" + CORRECT,
        ),
        ("- a\n- b\n", "f.yaml: holds a list, not a map; write `key: value` lines"),
        ("just text\n", "f.yaml: holds a str, not a map; write `key: value` lines"),
        ("a: 1\n3: x\n", "f.yaml:2: a key is not text; put the key in quotes"),
        ("a:\n  true: x\n", "f.yaml:2: a key is not text; put the key in quotes"),
        (
            "a: !!python/name:os.system\n",
            "f.yaml:1: the YAML tag 'tag:yaml.org,2002:python/name:os.system' is not used in settings; "
            "write a plain value",
        ),
        (
            "a: !!set {x, y}\n",
            "f.yaml:1: the YAML tag 'tag:yaml.org,2002:set' is not used in settings; write a plain value",
        ),
        ("a: &x\n  b: *x\n", "f.yaml:1: an alias refers to what contains it; write the value out"),
        ("a: \x00\n", "f.yaml: holds characters that YAML does not allow; save it as plain UTF-8"),
        ("a: " + "[" * 3000, "f.yaml: not valid YAML; see https://yaml.org for the syntax"),
        ("a: " + "9" * 5000, "f.yaml: not valid YAML; see https://yaml.org for the syntax"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_yaml(text, "f.yaml")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "text",
    [
        "policy_api_key: *sk-hidden\n",
        "policy_api_key: 'sk-hidden\n",
        "policy_api_key: sk-hidden: x\n",
        "k: {sk-hidden\n",
        "k: @sk-hidden\n",
    ],
)
def test_the_text_of_a_file_is_not_quoted(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_yaml(text, "env.yaml")
    assert "hidden" not in str(caught.value)


def test_aliases_of_aliases_do_not_grow_without_bound() -> None:
    levels = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(SettingsError, match="holds more than 20000 values; use fewer aliases of aliases"):
        parse_yaml("\n".join(levels), "f.yaml")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes("ä: 1\n".encode("latin-1"))
    cases = {
        tmp_path / "no.yaml": "no such file; check the path",
        tmp_path / "latin.yaml": "not UTF-8 at byte 0; save the file as UTF-8",
        tmp_path: "cannot be read: Is a directory; name a readable file",
    }
    for path, problem in cases.items():
        with pytest.raises(SettingsError) as caught:
            read_yaml(path)
        assert str(caught.value) == f"{path}: {problem}"


def test_a_byte_order_mark_is_not_part_of_the_first_key(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_yaml(tmp_path / "f.yaml").tree == {"a": 1}
