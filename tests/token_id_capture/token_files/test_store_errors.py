from __future__ import annotations

import pickle

import pytest

from gym_ray.errors import CaptureError
from gym_ray.token_id_capture.token_files import store_errors


@pytest.mark.parametrize("name", store_errors.__all__)
def test_each_is_a_capture_error_and_survives_pickling(name: str) -> None:
    error = getattr(store_errors, name)("r0: why")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (type(error), "r0: why")
    assert isinstance(error, CaptureError)
    kind = RuntimeError if name in ("RolloutFrozenError", "RolloutRetiredError") else ValueError
    assert isinstance(error, kind)
