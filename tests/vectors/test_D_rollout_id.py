from __future__ import annotations

from typing import Any

import pytest

from gym_ray import correlation
from gym_ray.errors import InputError
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.rows.materialised import materialise_rows


def refused(body: object) -> bool:
    with pytest.raises(ValueError, match="cannot be a rollout id"):
        correlation.derive_rollout_id(body)
    return True


def check_derivation(case: dict[str, Any], departures: dict[str, Any]) -> None:
    body = case["body"]
    departs = case.get("capture_file_ok") is False
    if departs:  # the peer derives an id that its own store then refuses
        rule = departures["derived_ids_are_checked"]
        assert rule["file"] == "D_rollout_id.json"
    if departs or "error" in case:
        assert refused(body)
    else:
        assert correlation.derive_rollout_id(body) == case["rollout_id"]


def check_episode_id(case: dict[str, Any], tmp_path: Any) -> None:
    """The typed episode id's rule is the one that explicit ids of rows must keep (D22)."""
    source = tmp_path / "in.jsonl"
    row = (
        '{"responses_create_params": {"input": "q"}, "agent_ref": {"name": "a"}, '
        f'"_ng_rollout_id": "{case["rollout_id"]}", "_ng_attempt_index": {case["attempt"]}}}\n'
    )
    source.write_text(row)
    if "error" in case:
        with pytest.raises(InputError):
            materialise_rows(source, tmp_path / "out.jsonl", RowOptions())
        return
    materialise_rows(source, tmp_path / "out.jsonl", RowOptions())
    body = {"_ng_rollout_id": case["rollout_id"], "_ng_attempt_index": case["attempt"]}
    assert correlation.derive_rollout_id(body) == case["capture_key"]


def test_vector(case: dict[str, Any], departures: dict[str, Any], tmp_path: Any) -> None:
    match case["kind"]:
        case "derive" | "derive_non_mapping":
            check_derivation(case, departures)
        case "episode_id":
            check_episode_id(case, tmp_path)
        case "prefix":
            tokens = case["token_capture"]
            assert correlation.rollout_path_prefix(case["rollout_id"], tokens) == case["path_prefix"]
            assert correlation.apply_rollout_prefix("http://h:1/", case["rollout_id"], tokens) == case["base_url"]
        case kind:
            pytest.fail(f"no adapter for {kind}")
