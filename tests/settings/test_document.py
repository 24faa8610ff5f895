from __future__ import annotations

from pathlib import Path

import pytest

from gym_ray.errors import SettingsError
from gym_ray.settings.document import Document, compose


@pytest.fixture(autouse=True)
def empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(**files: str) -> None:
    for name, text in files.items():
        path = Path(name.replace("__", "/") + ".yaml")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def read(
    paths: list[str], *tokens: str, env_file: Path | None = None, environ: dict[str, str] | None = None
) -> Document:
    return compose(paths, tokens, env_file=env_file, environ=environ or {})


def mistake(paths: list[str], *tokens: str, env_file: Path | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        read(paths, *tokens, env_file=env_file)
    return str(caught.value)


def test_precedence_and_places() -> None:
    write(low="a: low\nb: low\nc: low\nd: low\n", high="b: high\nc: high\nd: high\n", env="c: env\nd: env\n")
    document = read(["low.yaml", "high.yaml"], "++d=line")
    assert document.tree == {"a": "low", "b": "high", "c": "env", "d": "line"}
    assert [document.place((key,)) for key in "abcd"] == ["low.yaml:1", "high.yaml:1", "env.yaml:1", "command line"]
    assert document.place(("a", "deeper")) == "low.yaml:1"
    assert document.place(("e",)) == "settings"


def test_maps_merge_and_lists_replace() -> None:
    write(low="m: {x: 1, l: [1, 2]}\n", high="m: {y: 2, l: [3]}\n")
    assert read(["low.yaml", "high.yaml"]).tree == {"m": {"x": 1, "y": 2, "l": [3]}}


def test_an_env_file_elsewhere() -> None:
    write(env="a: here\n", keys__env="a: there\n")
    assert read([]).tree == {"a": "here"}
    assert read([], env_file=Path("keys/env.yaml")).tree == {"a": "there"}
    assert mistake([], env_file=Path("nope.yaml")) == "nope.yaml: no such file; check the path"


def test_includes_are_looked_up_beside_the_file_then_in_the_working_directory_then_in_the_package() -> None:
    shipped = "resources_servers/mcqa/configs/mcqa.yaml"
    write(
        sub__main=f"config_paths: [part.yaml, other.yaml, {shipped}]\n",
        sub__part="p: sub\n",
        part="p: top\n",
        other="o: top\n",
    )
    document = read(["sub/main.yaml"])
    assert (document.tree["p"], document.tree["o"]) == ("sub", "top")
    assert "mcqa_simple_agent" in document.tree
    assert [path.name for path in document.files] == ["main.yaml", "part.yaml", "other.yaml", "mcqa.yaml"]


def test_a_file_included_twice_counts_once() -> None:
    write(
        base="x: base\ny: base\n", one="config_paths: [base.yaml]\nx: one\n", two="config_paths: [base.yaml]\ny: two\n"
    )
    assert read(["one.yaml", "two.yaml"]).tree == {"x": "one", "y": "two"}


def test_the_listed_order_holds_for_a_file_that_is_also_included() -> None:
    write(base="x: base\n", one="config_paths: [base.yaml]\nx: one\n")
    assert read(["one.yaml", "base.yaml"]).tree == {"x": "base"}
    assert read(["base.yaml", "one.yaml"]).tree == {"x": "one"}


def test_paths_may_hold_interpolations() -> None:
    write(dir__a="x: 1\n", env="config_paths: ['${oc.env:WHERE}/a.yaml']\n")
    assert read([], environ={"WHERE": "dir"}).tree == {"x": 1}


def test_paths_on_the_command_line_replace_those_of_the_env_file() -> None:
    write(a="x: a\n", b="y: b\n", env="config_paths: [a.yaml]\n")
    assert read([]).tree == {"x": "a"}
    assert read(["b.yaml"]).tree == {"y": "b"}
    assert read([], "++config_paths=[b.yaml]").tree == {"y": "b"}
    assert read(["a.yaml"], "++config_paths=[b.yaml]").tree == {"y": "b"}


def test_an_absent_value_that_the_command_line_gives() -> None:
    write(a="x: ???\ny: ${x}\n")
    assert read(["a.yaml"], "++x=3").tree == {"x": 3, "y": 3}


def test_every_unset_value_is_listed() -> None:
    write(a="x: ???\nm:\n  y: ???\n  l:\n    - ???\n")
    assert mistake(["a.yaml"]).splitlines() == [
        "a.yaml:1: x: is ??? (not set); give a value: ++x=…",
        "a.yaml:3: m.y: is ??? (not set); give a value: ++m.y=…",
        "a.yaml:5: m.l.0: is ??? (not set); give a value: ++m.l.0=…",
    ]


def test_mistakes_in_the_list_of_files(tmp_path: Path) -> None:
    write(
        a="x: 1\nconfig_paths: b.yaml\n",
        c="config_paths:\n  - gone.yaml\n",
        d="config_paths: ['${nope}']\n",
        f="config_paths: [3]\n",
    )
    assert mistake([], "++config_paths=a.yaml") == (
        "command line: config_paths: is not a list of file names; write [a.yaml] or [a.yaml,b.yaml]"
    )
    assert (
        mistake(["a.yaml"]) == "a.yaml:2: config_paths: is not a list of file names; write [a.yaml] or [a.yaml,b.yaml]"
    )
    assert (
        mistake(["f.yaml"]) == "f.yaml:1: config_paths: is not a list of file names; write [a.yaml] or [a.yaml,b.yaml]"
    )
    assert mistake(["c.yaml"]).startswith(
        f"c.yaml:2: config_paths: there is no file 'gone.yaml'; looked for {tmp_path}/gone.yaml, "
    )
    assert "there is no file" in mistake(["n" * 300])
    assert mistake(["/gone.yaml"]) == "command line: config_paths: there is no file '/gone.yaml'; check the path"
    assert mistake(["d.yaml"]) == (
        "d.yaml:1: config_paths.0: ${nope} is not set; set nope in a YAML file or pass ++nope=…"
    )
    assert mistake(["a.yaml"], "+config_paths=[b.yaml]") == (
        "command line: config_paths: added twice with +; pass it once, or replace it with ++config_paths=…"
    )


def test_files_that_include_each_other() -> None:
    write(
        a="config_paths: [b.yaml]\n", b="config_paths: [sub/../a.yaml]\n", self="config_paths: [self.yaml]\n", sub__x=""
    )
    assert mistake(["a.yaml"]) == (
        "b.yaml: config_paths: files include each other: a.yaml -> b.yaml -> sub/../a.yaml; remove one of them"
    )
    assert mistake(["self.yaml"]) == (
        "self.yaml: config_paths: files include each other: self.yaml -> self.yaml; remove one of them"
    )


def test_several_missing_values_are_one_error() -> None:
    write(a="x: ${policy_base_url}\ny: ${policy_api_key}\nz: ${x}\n")
    assert [line.split(":")[1] for line in mistake(["a.yaml"]).splitlines()] == ["1", "2"]


def test_secrets_are_known() -> None:
    write(env="policy_api_key: sk-hidden\nother: {password: hunter22, pin: 1234567}\nshort: {token: abc}\n")
    document = read([], "++url=${oc.env:MY_TOKEN}", environ={"MY_TOKEN": "tok-hidden"})
    assert document.secrets == {"sk-hidden", "hunter22", "tok-hidden"}
