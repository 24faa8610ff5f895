from __future__ import annotations

import json
from pathlib import Path

import pytest

from gym_ray.errors import SettingsError
from gym_ray.rollouts.rows.input_rows import RowOptions, read_rows
from gym_ray.rollouts.rows.skills import describe_skills


def skills(place: Path, **files: str) -> Path:
    for name, text in files.items():
        path = place / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return place


def test_equal_content_has_equal_digests_wherever_it_lies(tmp_path: Path) -> None:
    here = describe_skills(skills(tmp_path / "a" / "s", b__two="2", one="1"))
    there = describe_skills(skills(tmp_path / "s", one="1", b__two="2"))
    assert {**here, "path": ""} == {**there, "path": ""}
    assert (here["name"], here["files"], here["path"]) == ("s", 2, str(tmp_path / "a" / "s"))


@pytest.mark.parametrize("other", [{"one": "2"}, {"eno": "1"}, {"one": "1", "two": ""}, {"on": "e1"}])
def test_other_names_or_content_have_another_digest(tmp_path: Path, other: dict[str, str]) -> None:
    first = describe_skills(skills(tmp_path / "a", one="1"))
    assert describe_skills(skills(tmp_path / "b", **other))["sha256"] != first["sha256"]


def test_what_holds_no_skills_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(SettingsError, match="skills_ref: holds no files"):
            describe_skills(path)


def test_every_row_says_which_skills_there_were(tmp_path: Path) -> None:
    line = {"responses_create_params": {"input": "q"}, "agent_ref": {"name": "a"}}
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (line, {**line, "skills_ref": {"name": "old"}})))
    found = [row.value["skills_ref"] for row in read_rows(path, RowOptions(skills_ref={"name": "s"}))]
    assert found == [{"name": "s"}] * 2
