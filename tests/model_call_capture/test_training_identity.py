"""The application is told which call is one for training, under the id that the evaluation record has."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gym_ray.dialects import DIALECT_BY_PATH
from gym_ray.model_call_capture.exchanges.exchange import TrainingCall, publish_training_call, read_training_call
from gym_ray.model_call_capture.middleware import CaptureMiddleware
from gym_ray.model_call_capture.writer import CaptureWriter

TRAINING = "/ng-rollout/r-0/training-token-capture"


async def told(path: str, writer: CaptureWriter | None = None, **members: Any) -> TrainingCall | None:
    found: list[TrainingCall | None] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        found.append(read_training_call(scope))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": b"{}", "more_body": False})

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        del message

    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": [], **members}
    await CaptureMiddleware(app, writer)(scope, receive, send)
    return found[0]


@pytest.mark.parametrize("path", DIALECT_BY_PATH)
async def test_a_training_call_has_the_id_of_its_evaluation_record(writer: CaptureWriter, path: str) -> None:
    call = await told(TRAINING + path, writer)
    (line,) = (writer.store.root / "r-0.capture.jsonl").read_text().splitlines()
    assert call == TrainingCall("r-0", json.loads(line)["model_call_id"])


async def test_without_a_record_an_id_is_minted() -> None:
    one, two = await told(f"{TRAINING}/v1/responses"), await told(f"{TRAINING}/v1/responses")
    assert one is not None
    assert two is not None
    assert (one.rollout_id, two.rollout_id) == ("r-0", "r-0")
    assert re.fullmatch(r"[0-9a-f]{32}", one.model_call_id)
    assert one.model_call_id != two.model_call_id


async def test_an_id_that_no_record_can_have_is_told_all_the_same(writer: CaptureWriter) -> None:
    call = await told("/ng-rollout/ä/training-token-capture/v1/responses", writer)
    assert call is not None
    assert (call.rollout_id, len(call.model_call_id)) == ("ä", 32)


@pytest.mark.parametrize(
    "path",
    ["/ng-rollout/r-0/v1/responses", "/v1/responses", f"{TRAINING}/v1/completions", f"{TRAINING}/v1/models"],
)
async def test_no_other_call_is_one_for_training(path: str) -> None:
    assert await told(path) is None


async def test_a_clients_own_state_is_no_identity() -> None:
    assert await told("/v1/responses", state={"gym_ray.training_call": {"rollout_id": "r-0"}}) is None
    scope: dict[str, Any] = {}
    publish_training_call(scope, TrainingCall("a", "b"))
    assert read_training_call(scope) == TrainingCall("a", "b")
    assert read_training_call({}) is None
