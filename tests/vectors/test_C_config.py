"""The settings of external staging, and the secret of its control routes (C220, C240)."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gym_ray.token_id_capture.config import TokenIdCaptureConfig, control_auth_token, read_token_capture

OWN_KEYS = {
    "retire_after_delivery",
    "training_rows",
    "mask_fraction_window",
    "on_unproven_prefix",
    "source",
    "source_kwargs",
    "staging",
}
MESSAGES = {
    "config/needs_rebuild_false": "set rebuild_response to false",
    "config/rebuild_defaults_true_so_rejected": "set rebuild_response to false",
    "config/megatron_without_external": "works with external_staging: true alone",
    "config/unknown_key": "Extra inputs are not permitted",
    "config/control_env_empty": "at least 1 character",
    "config/dir_relative_rejected": "is not absolute",
    "config/sink_without_lineage_store": "would find its parent",
}


def test_vector(case: dict[str, Any], departures: dict[str, Any]) -> None:
    if "env" in case:
        (name,) = case["env"]
        environ = {key: value for key, value in case["env"].items() if value is not None}
        if environ.get(name):
            assert control_auth_token(TokenIdCaptureConfig(control_auth_token_env=name), environ) == environ[name]
            return
        assert case["error"] == "ValueError"
        with pytest.raises(ValueError, match=f"the environment variable {name} is not set or empty"):
            control_auth_token(TokenIdCaptureConfig(control_auth_token_env=name), environ)
        return
    settings = {"token_id_capture": case["token_id_capture"], "model_call_capture_dir": "/captures"}
    if "error" in case:
        assert case["error"] == "ValidationError"
        with pytest.raises(ValidationError, match=MESSAGES.get(case["id"], ".")):
            read_token_capture(settings)
        return
    found = read_token_capture(settings).token_id_capture.model_dump(mode="json")
    changed = departures["prompts_are_stored_as_deltas"]["expected"]
    assert {key: value for key, value in found.items() if key not in OWN_KEYS} == {**case["ok"], **changed}
