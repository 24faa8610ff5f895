from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import InputError
from gym_ray.rollouts.collection import CollectionSettings
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.rows.materialised import materialise_rows

ROW_KEYS = {
    "agent_map",
    "agent_name",
    "fan_out",
    "interleave_repeats",
    "limit",
    "num_repeats",
    "num_repeats_add_seed",
    "responses_create_params",
}
RUN_KEYS = {"num_samples_in_parallel", "dispatch_budget_s"}


def run(case: dict[str, Any], tmp_path: Path) -> list[Any]:
    source = tmp_path / "in.jsonl"
    text = case.get("input_text")
    source.write_text(text if text is not None else "".join(json.dumps(row) + "\n" for row in case["input_rows"]))
    config = case["config"]
    assert set(config) <= ROW_KEYS | RUN_KEYS
    CollectionSettings(**{key: value for key, value in config.items() if key in RUN_KEYS})
    options = RowOptions(**{key: value for key, value in config.items() if key in ROW_KEYS})
    materialise_rows(source, tmp_path / "out.jsonl", options)
    return [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]


def normal(rows: list[dict[str, Any]]) -> list[Any]:
    """``extra_body`` is JSON in a text: compare what it says."""
    for row in rows:
        metadata = row["responses_create_params"].get("metadata")
        if metadata:
            metadata["extra_body"] = json.loads(metadata["extra_body"])
    return rows


def test_vector(case: dict[str, Any], departures: dict[str, Any], tmp_path: Path) -> None:
    rule = next((r for r in departures.values() if r["file"] == "D_preprocess.json" and case["name"] in r["ids"]), None)
    expected = case if rule is None else rule["expected"]
    if "error" in expected:
        with pytest.raises((InputError, ValueError)):
            run(case, tmp_path)
        assert not (tmp_path / "out.jsonl").exists()
        return
    if "materialized" in expected:
        assert normal(run(case, tmp_path)) == normal(expected["materialized"])
    else:
        indices = [[row["_ng_task_index"], row["_ng_rollout_index"]] for row in run(case, tmp_path)]
        assert indices == expected["indices"]
