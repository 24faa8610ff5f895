from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.errors import InputError, SettingsError
from gym_ray.rollouts.rows.input_rows import RowOptions, read_rows
from gym_ray.rollouts.rows.prompts import PromptTemplate, read_prompt_config

ROW = {"question": "2+2?", "n": 3, "ok": True, "choices": ["a", "ä"], "meta": {"level": "easy"}, "a.b": "dotted"}


def texts(user: str, system: str | None = None, row: dict[str, Any] | None = None) -> list[str]:
    return [item["content"] for item in PromptTemplate(user, system).items(ROW if row is None else row)]


def test_a_template_takes_texts_as_they_are_and_the_rest_as_json() -> None:
    assert texts("{question} {n} {ok} {choices}") == ['2+2? 3 true ["a","ä"]']


def test_a_placeholder_may_look_inside_a_field() -> None:
    assert texts("{meta.level} {a.b} {{n}}") == ["easy dotted {n}"]


def test_what_comes_first_is_said_by_the_system() -> None:
    items = PromptTemplate("{n}", "be {meta.level}").items(ROW)
    assert items == [{"role": "system", "content": "be easy"}, {"role": "user", "content": "3"}]


@given(st.text())
def test_what_a_field_holds_is_never_a_template(text: str) -> None:
    assert texts("<{x}>", None, {"x": text, "y": "no"}) == [f"<{text}>"]


@given(st.text())
def test_doubled_braces_give_any_text_back(text: str) -> None:
    assert texts(text.replace("{", "{{").replace("}", "}}"), None, {}) == [text]


@pytest.mark.parametrize("template", ["{", "}", "{a", "a}", "{}", "{ a}", "{a b}", "{a..b}", "{{a}", "{a{b}}"])
def test_a_brace_without_a_placeholder_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match=r"user: .*is no placeholder"):
        PromptTemplate(template)


@pytest.mark.parametrize("name", ["absent", "meta.absent", "question.inner"])
def test_a_field_that_the_row_lacks_is_named(name: str) -> None:
    with pytest.raises(KeyError, match=name):
        texts(f"{{{name}}}")


def rows(tmp_path: Path, line: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps({"agent_ref": {"name": "a"}, **line}) + "\n")
    return [row.value for row in read_rows(path, RowOptions(prompt=PromptTemplate("{q}?"), **options))]


@pytest.mark.parametrize("body", [{}, {"responses_create_params": None}, {"responses_create_params": {"top_p": 1}}])
def test_rows_get_their_input_from_the_template(tmp_path: Path, body: dict[str, Any]) -> None:
    (found,) = rows(tmp_path, {"q": "why", **body}, responses_create_params={"temperature": 0})
    expected = {**(body.get("responses_create_params") or {}), "input": [{"role": "user", "content": "why?"}]}
    assert found["responses_create_params"] == {**expected, "temperature": 0}
    assert found["q"] == "why"


@pytest.mark.parametrize(
    ("line", "field", "says"),
    [
        ({"q": "x", "responses_create_params": {"input": "own"}}, "responses_create_params.input", "of its own"),
        ({"q": "x", "responses_create_params": []}, "responses_create_params", "must be an object"),
        ({"p": "x"}, "q", "missing; prompt_config has a placeholder for it"),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_line_and_field(
    tmp_path: Path, line: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(InputError, match=says) as caught:
        rows(tmp_path, line)
    assert (caught.value.line, caught.value.field) == (1, field)


def test_a_template_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("system: Be short.\nuser: |\n  {question}\n")
    assert read_prompt_config(path) == PromptTemplate("{question}\n", "Be short.")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "p.yaml: no such file"),
        ("- user\n", "not a map"),
        ("system: x\n", "p.yaml: user: required, but not set"),
        ("user: 3\n", "p.yaml:1: user: is not a text"),
        ("user: x\nsystem: [a]\n", "p.yaml:2: system: is not a text"),
        ("user: x\ninput: y\n", "p.yaml:2: input: unknown key"),
        ("user: '{'\n", "p.yaml:1: user: '{' is no placeholder"),
    ],
)
def test_a_file_without_a_template_is_refused(tmp_path: Path, text: str | None, problem: str) -> None:
    path = tmp_path / "p.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_prompt_config(path)
    assert problem in str(caught.value)
