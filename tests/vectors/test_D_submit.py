"""Submit documents: which are accepted, and what each of their benchmarks is run with (D131-D134)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import SettingsError
from gym_ray.settings.overrides import parse_override
from gym_ray.settings.yaml_files import dump_yaml
from gym_ray.submission.documents import read_submission
from gym_ray.submission.planning import plan_submit

_JOB = "gym-job-X"


def meaning(argument: str) -> Any:
    """Return what an argument says: an override by the grammar, a flag and its value by their words."""
    return parse_override(argument) if argument.startswith("+") else argument.split()


def with_flags_joined(arguments: tuple[str, ...]) -> list[str]:
    """Return arguments with each flag and its value as one, as the vectors write them."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1].startswith("--") and " " not in joined[-1]:
            joined[-1] += f" {argument}"
        else:
            joined.append(argument)
    return joined


def test_submit(case: dict[str, Any], tmp_path: Path) -> None:
    document = tmp_path / "submit.yaml"
    document.write_text(dump_yaml(case["submit"]))
    if not case["accepted"]:
        with pytest.raises(SettingsError) as raised:
            read_submission(document)
        assert str(document) in str(raised.value)
        return
    submission = read_submission(document)
    plan = plan_submit(submission, Path(submission.job.output_path) / _JOB)
    found = {benchmark.name: with_flags_joined(benchmark.arguments) for benchmark in plan.benchmarks}
    expected = {name: arguments[1:] for name, arguments in case["eval_run_args"].items()}
    assert {name: list(map(meaning, arguments)) for name, arguments in found.items()} == {
        name: list(map(meaning, arguments)) for name, arguments in expected.items()
    }
