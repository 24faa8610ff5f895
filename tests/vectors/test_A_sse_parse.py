from __future__ import annotations

import base64
from typing import Any

from gym_ray.dialects.sse import parse_objects


def test_vector(case: dict[str, Any]) -> None:
    body = base64.b64decode(case["raw_b64"]) if "raw_b64" in case else case["raw"].encode()
    assert parse_objects(body) == case["expected"]
