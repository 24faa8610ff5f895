from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError

import pytest

from gym_ray.token_id_capture.exact_tokens import ExactTokens, ParentTokens, Untrainable
from gym_ray.token_id_capture.extras import WeightSpan
from gym_ray.token_id_capture.token_arrays import pack_log_probs, pack_token_ids


def test_an_outcome_cannot_be_changed_and_travels_between_processes() -> None:
    tokens = ExactTokens(
        pack_token_ids([1, 2]), pack_token_ids([3]), pack_log_probs([-0.5]), weight_spans=(WeightSpan("v", 0, 1),)
    )
    again = pickle.loads(pickle.dumps(tokens))
    assert again.prompt_token_ids.tolist() == [1, 2]
    assert again.weight_spans == tokens.weight_spans
    assert pickle.loads(pickle.dumps(Untrainable("usage_missing", "3 of 4"))) == Untrainable("usage_missing", "3 of 4")
    with pytest.raises(FrozenInstanceError):
        tokens.ended_by = "eos"  # type: ignore[misc]
    assert ParentTokens("p", pack_token_ids([1])).generated == 0
