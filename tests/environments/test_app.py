from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest

from gym_ray.correlation import current_rollout_id
from gym_ray.environments import Environment, Session, Tool, ToolError, UnknownSessionError, build_environment_app
from gym_ray.environments.base import VerifyBody, VerifyReply


class Counter(Environment):
    """Counts tool calls by session, and fails in every way an environment can."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.seen: list[tuple[str, str | None, str | None]] = []

    @property
    def tools(self) -> Mapping[str, Tool]:
        return {"count": self._count, "refuse": self._refuse, "break": self._break, "leave": self._leave}

    async def seed_session(self, session: Session, body: dict[str, Any]) -> dict[str, Any]:
        self.counts[session.id] = 0
        return {"got": body}

    async def close_session(self, session: Session) -> None:
        self.counts.pop(session.id, None)

    async def verify(self, session: Session, body: dict[str, Any]) -> dict[str, Any]:
        request = VerifyBody.model_validate(body)
        if session.id not in self.counts:
            raise UnknownSessionError("no such session")
        return VerifyReply(float(self.counts[session.id])).as_json(request)

    async def _count(self, session: Session, arguments: dict[str, Any]) -> Any:
        self.seen.append((session.id, session.rollout_id, current_rollout_id.get()))
        self.counts[session.id] += 1
        return [self.counts[session.id], arguments]

    async def _refuse(self, session: Session, arguments: dict[str, Any]) -> Any:
        raise ToolError("not that one", 418)

    async def _leave(self, session: Session, arguments: dict[str, Any]) -> Any:
        raise SystemExit("bye")

    async def _break(self, session: Session, arguments: dict[str, Any]) -> Any:
        raise ZeroDivisionError("oh")


@pytest.fixture
def environment() -> Counter:
    return Counter()


@pytest.fixture
async def client(environment: Counter) -> AsyncIterator[httpx.AsyncClient]:
    app = build_environment_app(environment, "desk", max_body_bytes=2000)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t") as client:
        yield client


COOKIE = "Counter___desk"
VERIFY = {"responses_create_params": {}, "response": {"output": []}}


async def test_a_session_lives_from_seed_to_close(client: httpx.AsyncClient, environment: Counter) -> None:
    seeded = await client.post("/ng-rollout/0-1/seed_session", json={"a": 1})
    assert (seeded.status_code, seeded.json()) == (200, {"got": {"a": 1}})
    assert (await client.post("/ng-rollout/0-1/count", json={"x": 2})).json() == [1, {"x": 2}]
    assert (await client.post("/count")).json() == [2, {}]
    assert environment.seen[0][1:] == ("0-1", "0-1")
    assert environment.seen[1][1:] == (None, None)
    reply = (await client.post("/verify", json=VERIFY)).json()
    assert reply == {
        **VERIFY,
        "reward": 2.0,
        "mask_sample": False,
        "failure_kind": None,
        "failure_reason": None,
    }
    assert (await client.post("/close_session")).json() == {}
    assert environment.counts == {}
    assert (await client.post("/verify", json=VERIFY)).status_code == 409


async def test_seeding_again_opens_another_session(client: httpx.AsyncClient) -> None:
    await client.post("/seed_session")
    await client.post("/count")
    await client.post("/seed_session")
    assert (await client.post("/count")).json() == [1, {}]


async def test_a_forged_cookie_opens_nothing(client: httpx.AsyncClient, environment: Counter) -> None:
    await client.post("/seed_session")
    session_id, _, signature = client.cookies[COOKIE].partition(".")
    assert session_id in environment.counts
    for forged in (
        session_id,
        f"{session_id}.",
        f"{session_id}.{signature[:-1]}0x",
        f"x{session_id}.{signature}",
        "é.",
    ):
        headers = {"cookie": f"{COOKIE}={forged}".encode()}
        async with httpx.AsyncClient(transport=client._transport, base_url="http://t") as other:
            answer = await other.post("/verify", json=VERIFY, headers=headers)
        assert answer.status_code == 409
        assert COOKIE in answer.cookies


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/refuse", 418, "not that one"),
        ("/break", 500, "ZeroDivisionError: oh"),
        ("/leave", 500, "SystemExit: bye"),
        ("/nothing", 404, "Unknown tool: nothing. Known tools: break, count, leave, refuse."),
    ],
)
async def test_what_goes_wrong_is_an_answer(client: httpx.AsyncClient, path: str, status: int, message: str) -> None:
    answer = await client.post(path, json={})
    assert (answer.status_code, answer.json()["error"]) == (status, message)


@pytest.mark.parametrize(
    ("body", "status", "mention"),
    [
        (b"[1]", 422, "JSON object"),
        (b"{oops", 422, "JSON object"),
        (b'{"x": "' + b"y" * 3000 + b'"}', 413, "2000"),
        (b"{}", 422, "response: Field required"),
        (b'{"response": 3, "responses_create_params": {}}', 422, "response: Input should be a valid dictionary"),
    ],
)
async def test_a_bad_verify_body_names_what_is_wrong(
    client: httpx.AsyncClient, body: bytes, status: int, mention: str
) -> None:
    answer = await client.post("/verify", content=body)
    assert answer.status_code == status
    assert mention in answer.json()["error"]
    assert answer.json()["detail"]


async def test_validation_detail_has_the_place_of_each_field(client: httpx.AsyncClient) -> None:
    detail = (await client.post("/verify", json={})).json()["detail"]
    assert [item["loc"] for item in detail] == [["body", "responses_create_params"], ["body", "response"]]


@pytest.mark.parametrize("path", ["/ng-rollout/-bad/seed_session", "/ng-rollout/0-1", "/seed_session/x"])
async def test_a_path_that_is_none_of_ours_is_404(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.post(path)).status_code == 404


def test_a_tool_cannot_take_the_place_of_a_route() -> None:
    class Cheat(Counter):
        @property
        def tools(self) -> Mapping[str, Tool]:
            return {"verify": self._count}

    with pytest.raises(ValueError, match="Cheat: a tool cannot be named verify"):
        build_environment_app(Cheat(), "desk")


async def test_health_answers_get(client: httpx.AsyncClient) -> None:
    assert (await client.get("/health")).json() == {"status": "ok"}
    assert (await client.get("/verify")).status_code == 405


async def test_aggregate_needs_a_list_of_objects(client: httpx.AsyncClient) -> None:
    assert (await client.post("/aggregate_metrics", json={"verify_responses": [{}]})).json() == {"agent_metrics": {}}
    answer = await client.post("/aggregate_metrics", json={"verify_responses": [1]})
    assert (answer.status_code, "verify_responses" in answer.json()["error"]) == (422, True)
