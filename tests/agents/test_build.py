from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gym_ray.agents.build import build_agent
from gym_ray.agents.callable_loading import load_callable
from gym_ray.errors import SettingsError
from gym_ray.settings import McqaOptions, ServerSettings


def test_what_is_no_agent_is_a_settings_error() -> None:
    server = ServerSettings("x", "responses_api_agents", "mcqa", McqaOptions())
    with pytest.raises(SettingsError, match=r"x\.responses_api_agents\.mcqa: 'mcqa' is not an agent; use simple_agent"):
        build_agent(server)


def test_a_module_and_an_attribute_of_it_are_found() -> None:
    assert load_callable("json:dumps")({}) == "{}"
    assert load_callable("pathlib:Path.cwd")() == Path.cwd()


def test_a_file_runs_once_and_may_hold_dataclasses(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 3\n"
    )
    assert load_callable(f"{path}:A")().x == 3
    assert load_callable(f"{path}:A") is load_callable(f"{path}:A")


def test_a_file_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("raise KeyError('oh')")
    with pytest.raises(SettingsError, match=r"run\.yaml: a\.callable: cannot import .*broken\.py: KeyError: 'oh'"):
        load_callable(f"{path}:run", where="run.yaml", key="a.callable")
    assert not [name for name in sys.modules if name.startswith("gym_ray_agent_broken")]


@pytest.mark.parametrize("target", ["json", "json:", ":dumps"])
def test_a_text_of_another_form_is_refused(target: str) -> None:
    with pytest.raises(SettingsError, match="does not name a function"):
        load_callable(target)
