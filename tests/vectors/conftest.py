"""Feeds vector files to the adapters beside this file: ``test_A_usage.py`` runs the cases of ``A_usage.json``.

An adapter is a test function with a ``case`` argument; its attribute ``group`` names the list that it runs, where a
file has several. A vector file that the chosen directory lacks is not run. Cases whose peer value a W-item changes are
listed, by rule, in ``departures.toml``.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gym_ray.testing.spelled_values import spelled

HERE = Path(__file__).parent


def _vector_file(config: pytest.Config, test_file: Path) -> Path:
    directory: Path = config.getoption("--vectors")
    return directory / (test_file.stem.removeprefix("test_") + ".json")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.parent == HERE and collection_path.name.startswith("test_"):
        return True if not _vector_file(config, collection_path).exists() else None
    return None


def _name(case: dict[str, Any], index: int) -> str:
    label = case.get("id") or case.get("name") or case.get("kind") or ""
    return f"{index}-{label}".encode("ascii", "backslashreplace").decode()[:80]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" not in metafunc.fixturenames:
        return
    document = json.loads(_vector_file(metafunc.config, Path(metafunc.module.__file__)).read_text("utf-8"))
    group = getattr(metafunc.function, "group", None)
    cases = document[group] if group else document.get("vectors") or document.get("cases")
    kinds = getattr(metafunc.function, "kinds", None)
    chosen = [(i, case) for i, case in enumerate(cases) if kinds is None or case.get("kind") in kinds]
    metafunc.parametrize("case", [pytest.param(case, id=_name(case, i)) for i, case in chosen])


@pytest.fixture
def departures() -> dict[str, Any]:
    """The table of departures: rule -> {file, ids or predicate, why}."""
    return tomllib.loads((HERE / "departures.toml").read_text("utf-8"))


@pytest.fixture
def document(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The vector file of the adapter, without its cases."""
    whole = json.loads(_vector_file(request.config, Path(request.module.__file__)).read_text("utf-8"))
    return {key: value for key, value in whole.items() if key not in ("vectors", "cases")}


@pytest.fixture
def plain() -> Callable[[Any], Any]:
    """What a value of staging vectors means: ``{"$t": kind, "v": ...}`` is one that JSON cannot express (C6)."""
    return spelled
