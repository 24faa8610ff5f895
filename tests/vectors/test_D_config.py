from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gym_ray.errors import SettingsError
from gym_ray.settings import CaptureSettings, HeadServer
from gym_ray.settings.document import compose


def run_override(case: dict[str, Any]) -> object:
    return compose([], case["tokens"], env_file=None, environ={}).tree


def run_merge(case: dict[str, Any]) -> object:
    for name, text in case["files"].items():
        Path(name).write_text(text, encoding="utf-8")
    if case["env_yaml"] is not None:
        Path("env.yaml").write_text(case["env_yaml"], encoding="utf-8")
    document = compose([], case["argv"], env_file=None, environ={})
    head = HeadServer.model_validate(document.tree.get("head_server", {})).model_dump()
    files = {"config_paths": [str(path) for path in document.files]} if document.files else {}
    return document.tree | files | {"head_server": head}


def run_capture(case: dict[str, Any]) -> object:
    settings = CaptureSettings.model_validate(case["config"])
    directory = settings.model_call_capture_dir
    return {"enabled": settings.observability_enabled, "dir": None if directory is None else str(directory)}


@pytest.fixture(autouse=True)
def empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_vector(case: dict[str, Any]) -> None:
    runner, expected = {
        "override": lambda: (run_override, case.get("config", {"error": case.get("error")})),
        "merge": lambda: (run_merge, case["result"]),
        "capture_config": lambda: (run_capture, {k: case[k] for k in ("enabled", "dir", "error") if k in case}),
    }[case["kind"]]()
    if "error" in expected:
        with pytest.raises(ValidationError if case["kind"] == "capture_config" else SettingsError):
            runner(case)
    else:
        assert runner(case) == expected
