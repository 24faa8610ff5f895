from __future__ import annotations

import asyncio
import builtins
from types import SimpleNamespace
from typing import Any

from gym_ray.model_call_capture.exchanges import verdict


def namespace(value: Any) -> Any:
    return (
        SimpleNamespace(**{key: namespace(item) for key, item in value.items()}) if isinstance(value, dict) else value
    )


def exception(name: str, bases: list[str]) -> BaseException:
    known = asyncio.CancelledError if name == "CancelledError" else getattr(builtins, name, None)
    kind = known or type(name, tuple(getattr(builtins, base) for base in bases[:1]), {})
    error = kind()
    assert isinstance(error, BaseException)
    return error


def error_with(attributes: dict[str, Any]) -> Exception:
    error = RuntimeError("m")
    for key, value in attributes.items():
        error.__dict__[key] = namespace(value) if key == "response" else value
    return error


def test_vector(case: dict[str, Any]) -> None:
    if case["kind"] == "status":
        assert verdict.category_from_status(case["status"]) == case["expected"]
    elif case["kind"] == "exception":
        error = exception(case["exception_class"], case["bases"])
        assert verdict.category_from_exception(error) == case["expected"]
    else:
        status, body = verdict.exception_details(error_with(case["attributes"]))
        assert {"status": status, "body": (body or b"").decode()} == case["expected"]
