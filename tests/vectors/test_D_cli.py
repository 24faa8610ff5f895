"""Command lines and what they say in the grammar of overrides, and names of files (D2, D124, D132 to D134)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from gym_ray.cli.app import app
from gym_ray.errors import SettingsError
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.settings import ASSETS_ROOT, server_config_paths
from gym_ray.settings.overrides import parse_override
from gym_ray.settings.yaml_files import dump_yaml
from gym_ray.submission.documents import read_submission
from gym_ray.submission.planning import final_run, run_tokens

_USAGE = 2
_MODULES = {"env": "gym_ray.cli.env", "eval": "gym_ray.cli.evaluate"}


class UsageError(Exception):
    """The command line cannot be used."""


def tokens_of(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what a command hands to the reader of settings, the files that it names first.

    Raises:
        SettingsError: A named asset is not known.
        UsageError: The command line cannot be used.
    """
    told: list[str] = []

    def read(configs: Any, resources: Any, model_type: Any, overrides: Any, *_: object) -> None:
        paths = server_config_paths(resources_servers=resources or [], model_type=model_type, configs=configs or [])
        names = ",".join(str(path).replace(str(ASSETS_ROOT), "<install>") for path in paths)
        told.extend([f"+config_paths=[{names}]"] * bool(paths))
        told.extend(overrides)
        raise typer.Exit(0)

    monkeypatch.setattr(f"{_MODULES[argv[0]]}.read_settings", read)
    result = CliRunner().invoke(app, argv)
    if isinstance(result.exception, SettingsError):
        raise result.exception
    if result.exit_code == _USAGE:
        raise UsageError(result.output)
    assert result.exit_code == 0, result.output
    return told


def aggregate_tokens(argv: list[str]) -> list[str]:
    """Return what ``eval aggregate`` was told; it reads its flags itself, so they never become overrides."""
    group: Any = typer.main.get_command(app)
    told = group.commands["eval"].commands["aggregate"].make_context("aggregate", argv).params
    return [
        f"+input_glob={','.join(told['input_glob'])}",
        f"+output_jsonl_fpath={told['output']}",
        *(["+disable_health_check=true"] if told["no_health_check"] else []),
    ]


def meaning(token: str) -> Any:
    """Return what a token says; a list of files, whose stand-in for the package is outside the grammar, as it is."""
    return token if token.startswith("+config_paths=") else parse_override(token)


def test_argv(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    argv = case["argv"]
    if "error" in case:
        with pytest.raises((UsageError, SettingsError)):
            tokens_of(argv, monkeypatch)
        return
    found = aggregate_tokens(argv[2:]) if argv[1] == "aggregate" else tokens_of(argv, monkeypatch)
    expected = case["hydra_tokens"]
    assert list(map(meaning, found)) == list(map(meaning, expected))


test_argv.kinds = ("argv",)  # type: ignore[attr-defined]


def test_paths(case: dict[str, Any]) -> None:
    paths = RunPaths.of(case["output"])
    expected = {name: Path(case[name]).absolute() for name in ("output", "failures", "materialized", "aggregate")}
    found = {"failures": paths.failures, "materialized": paths.materialised, "aggregate": paths.aggregate_metrics}
    assert {"output": paths.output, **found} == expected


test_paths.kinds = ("paths",)  # type: ignore[attr-defined]


def unquoted(token: str) -> str:
    """Return a token without the quotes that a shell would take away."""
    return token[1:-1] if token.startswith("'") and token.endswith("'") else token


def test_submit_run(case: dict[str, Any], departures: dict[str, Any]) -> None:
    final = final_run(case["benchmark_job_dir"], case["run"], resumable=case["resumable"])
    assert final == case["final_run"]
    rule = departures["null_is_submitted_as_null"]
    expected = []
    for override in map(parse_override, map(unquoted, case["tokens"])):
        is_null = override.value == rule["peer"] and values_at(case["final_run"], override.path) is None
        expected.append(replace(override, value=None) if is_null else override)
    assert list(map(parse_override, run_tokens(final))) == expected


test_submit_run.kinds = ("submit_run",)  # type: ignore[attr-defined]


def test_scratch_guard(case: dict[str, Any], tmp_path: Path) -> None:
    document = tmp_path / "submit.yaml"
    benchmarks = {"driver": {"benchmarks": {"b": {"run": {}}}}}
    document.write_text(dump_yaml({"compute": {"c": {"type": "ray"}}, "job": {"output_path": "/jobs"}, **benchmarks}))
    if not case["accepted"]:
        with pytest.raises(SettingsError, match="scratch keys can be changed, not added"):
            read_submission(document, case["overrides"])
        return
    assert read_submission(document, case["overrides"]).driver.benchmarks["b"].run == {"limit": 1}


test_scratch_guard.kinds = ("scratch_guard",)  # type: ignore[attr-defined]


def values_at(tree: Any, path: tuple[str, ...]) -> Any:
    """Return what stands at a path of nested maps."""
    for part in path:
        tree = tree[part]
    return tree
