from __future__ import annotations

import json

from gym_ray import exact_json
from gym_ray.testing.token_rollouts import TokenRollout
from gym_ray.token_id_capture.builder import run_builder
from gym_ray.token_id_capture.row_json import row_as_json
from gym_ray.token_id_capture.rows import training_rows


def test_a_row_is_plain_json_with_an_entry_for_each_token() -> None:
    rollout = TokenRollout()
    rollout.call("c1", [1, 2], [3], gym_ray={"version_start": "v1", "constrained": True})
    rollout.call("c2", [4], [2**40, 6], "c1")
    rollout.call("b2", [7], [8], "c1")
    main, branch = (row_as_json(row) for row in training_rows("r0", run_builder(rollout.packed()), branches=True))
    assert json.loads(exact_json.dumps(main)) == main
    assert main == {
        "rollout_id": "r0",
        "chain_id": "main",
        "mask_sample": False,
        "reasons": [],
        "token_ids": [1, 2, 3, 4, 2**40, 6],
        "loss_mask": [0, 0, 1, 0, 1, 1],
        "policy_log_probs": [-0.5, -0.5, -0.25],
        "spans": [
            {"kind": "prompt", "start": 0, "end": 2, "model_call_id": "c1", "loss": False},
            {"kind": "policy", "start": 2, "end": 3, "model_call_id": "c1", "loss": True},
            {"kind": "interstitial", "start": 3, "end": 4, "model_call_id": "c2", "loss": False},
            {"kind": "policy", "start": 4, "end": 6, "model_call_id": "c2", "loss": True},
        ],
        "weight_spans": [{"version": "v1", "start": 2, "end": 3}],
        "shared_prefix": 0,
        "shared_with": None,
        "constrained_calls": ["c1"],
    }
    assert (branch["loss_mask"], branch["policy_log_probs"]) == ([0, 0, 0, 0, 1], [-0.5, -0.5])
    assert (branch["shared_prefix"], branch["shared_with"]) == (3, "main")


def test_a_masked_row_says_why() -> None:
    rollout = TokenRollout()
    rollout.call("c1", [1], [2])
    output = run_builder(rollout.packed())
    (row,) = training_rows("r0", output, mask_sample=True, reasons=["capture_incomplete"])
    assert (row_as_json(row)["mask_sample"], row_as_json(row)["reasons"]) == (True, ["capture_incomplete"])
