"""Training-capture calls on paths outside of the three dialects: which ones mark their rollout."""

from __future__ import annotations

import asyncio
from typing import Any

from gym_ray.model_call_capture.middleware import CaptureMiddleware
from gym_ray.model_call_capture.training_calls import UnobservedTrainingCalls

BUILT_IN = {("GET", "/v1/models"), ("GET", "/health"), ("POST", "/v1/messages/count_tokens")}


def wanted(case: dict[str, Any], departures: dict[str, Any]) -> dict[str, Any]:
    """Return what a case expects, as the departures have it."""
    expected: dict[str, Any] = dict(case["expected"])
    ends_itself = not case["app_raises"] and not case["app_sends_nothing"]
    if ends_itself and 300 <= case["app_status"] <= 399:
        expected |= departures["a_redirect_generates_nothing"]["expected"]
    if (case["method"], expected["routed_path"]) in BUILT_IN:
        expected |= departures["what_every_server_declares"]["expected"]
    return expected


async def test_vector(case: dict[str, Any], departures: dict[str, Any]) -> None:
    found: dict[str, Any] = dict.fromkeys(("routed_path", "client_status", "location", "raised"))
    found["marked_incomplete"] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found["routed_path"] = scope["path"]
        if case["app_raises"]:
            raise {"CancelledError": asyncio.CancelledError, "RuntimeError": RuntimeError}[case["app_raises"]]
        if case["app_sends_nothing"]:
            return
        location = case["app_location"]
        headers = [(b"location", location.encode())] if location else []
        await send({"type": "http.response.start", "status": case["app_status"], "headers": headers})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            found["client_status"] = message["status"]
            found["location"] = next(
                (value.decode() for name, value in message["headers"] if name == b"location"), None
            )

    training = UnobservedTrainingCalls(
        lambda rollout_id, call_id: found["marked_incomplete"].append([rollout_id, call_id]),
        [(method, path) for method, path in case["declared_non_generating"]],
    )
    scope = {"type": "http", "method": case["method"], "path": case["path"], "query_string": b""}
    scope["headers"] = [(b"host", b"testserver")]
    try:
        await CaptureMiddleware(app, None, training)(scope, receive, send)  # type: ignore[arg-type]
    except (RuntimeError, asyncio.CancelledError) as error:
        found["raised"] = type(error).__name__
    assert found == wanted(case, departures)
