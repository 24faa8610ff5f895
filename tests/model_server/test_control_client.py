from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from gym_ray.errors import ControlRequestError, RolloutIdError, RolloutRetiredError
from gym_ray.model_server.control_client import ControlClient
from gym_ray.model_server.control_routes import MAX_IDS, control_routes
from gym_ray.testing.ledger_commits import commit_of_turn
from gym_ray.testing.serving import served
from gym_ray.token_id_capture.staging import FileCaptureLedger, MemoryCaptureLedger, RolloutRemoval

URL, SECRET = "http://server/prefix/", "s3cret-é"
EMPTY = {"rollout_id": "r1", "records": [], "failures": []}

Answer = Callable[[httpx.Request], httpx.Response]


def client_of(answer: Answer, timeout_s: float = 5.0) -> ControlClient:
    return ControlClient(URL, SECRET, timeout_s, transport=httpx.MockTransport(answer))


def refusing(request: httpx.Request) -> httpx.Response:
    raise AssertionError(f"{request.url} was asked")


def removing(seen: list[list[str]]) -> Answer:
    def answer(request: httpx.Request) -> httpx.Response:
        ids = json.loads(request.content)["rollout_ids"]
        seen.append(ids)
        return httpx.Response(200, json={"removed": ids[:1], "absent": ids[1:]})

    return answer


def test_it_sends_the_secret_to_the_path_of_the_rollout() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=EMPTY)

    with client_of(answer) as client:
        assert client.manifest("r1").records == []
    (request,) = seen
    assert str(request.url) == "http://server/prefix/training-token-capture/control/rollouts/r1/manifest"
    assert [value for name, value in request.headers.raw if name.lower() == b"authorization"] == [
        b"Bearer " + SECRET.encode()
    ]


@pytest.mark.parametrize(("url", "token", "timeout_s"), [("", "t", 1), (URL, "", 1), (URL, "t", 0), (URL, "t", -1)])
def test_it_needs_a_server_a_secret_and_a_deadline(url: str, token: str, timeout_s: float) -> None:
    with pytest.raises(ValueError, match=r"empty|positive"):
        ControlClient(url, token, timeout_s)
    for no_time in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="positive"):
            ControlClient(URL, "t", no_time)


@pytest.mark.parametrize("token", ["hidden\n", "hid\r\nden", " hidden", "hidden ", "hidden\x00", "hidden\udc80"])
def test_a_secret_that_no_header_carries_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ValueError, match="bearer token") as client:
        ControlClient(URL, token, 5.0)
    with pytest.raises(ValueError, match="bearer token") as routes:
        control_routes(MemoryCaptureLedger(), token)
    assert "hid" not in f"{client.value} {routes.value}"


@pytest.mark.parametrize(
    "url", ["http://me:hidden@server", "http://@server", "http://server?key=hidden", "http://s#hidden"]
)
def test_a_url_with_more_than_a_place_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ValueError, match="base URL") as caught:
        ControlClient(url, SECRET, 5.0)
    assert "hidden" not in str(caught.value)


def test_a_whole_list_is_checked_before_the_first_request() -> None:
    with client_of(refusing) as client:
        for remove in (client.retire, client.delete):
            with pytest.raises(RolloutIdError, match="'a b'"):
                remove([*(f"r{number}" for number in range(MAX_IDS + 1)), "a b"])
            with pytest.raises(TypeError, match="one string"):
                remove("r1")
            assert remove([]) == RolloutRemoval()
        with pytest.raises(RolloutIdError):
            client.manifest("../r1")


def test_long_lists_go_in_batches_and_repeated_ids_count_once() -> None:
    seen: list[list[str]] = []
    ids = [f"r{number}" for number in range(2 * MAX_IDS + 3)]
    with client_of(removing(seen)) as client:
        removal = client.retire([*ids, *ids[:10]])
    assert [len(batch) for batch in seen] == [MAX_IDS, MAX_IDS, 3]
    assert removal.removed == [ids[0], ids[MAX_IDS], ids[2 * MAX_IDS]]
    assert sorted([*removal.removed, *removal.absent]) == sorted(ids)


@pytest.mark.parametrize("status", [301, 400, 401, 404, 409, 422, 500, 503])
def test_any_other_status_is_an_error_with_status_and_body(status: int) -> None:
    with client_of(lambda _: httpx.Response(status, text="open checkpoint")) as client:
        with pytest.raises(RuntimeError, match=f"HTTP {status}: open checkpoint") as caught:
            client.retire(["r1"])
        assert isinstance(caught.value, ControlRequestError)
        assert (caught.value.status, caught.value.body) == (status, "open checkpoint")


def test_a_retired_rollout_has_an_error_of_its_own() -> None:
    with (
        client_of(lambda _: httpx.Response(410, json={"detail": "retired"})) as client,
        pytest.raises(RolloutRetiredError, match="retired"),
    ):
        client.manifest("r1")


@pytest.mark.parametrize(
    "body",
    [{**EMPTY, "rollout_id": "r2"}, {"rollout_id": "r1", "more": 1}, {}, [], {**EMPTY, "schema_version": 3}],
)
def test_an_answer_of_something_else_is_refused(body: Any) -> None:
    with (
        client_of(lambda _: httpx.Response(200, json=body)) as client,
        pytest.raises(ControlRequestError, match=r"r2|RolloutManifest"),
    ):
        client.manifest("r1")


@pytest.mark.parametrize("body", [{}, {"removed": ["r2"]}, {"removed": ["r1"], "absent": ["r1"]}])
def test_a_removal_of_other_rollouts_is_refused(body: Any) -> None:
    with (
        client_of(lambda _: httpx.Response(200, json=body)) as client,
        pytest.raises(ControlRequestError, match="not about the rollouts"),
    ):
        client.delete(["r1"])


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), httpx.ReadTimeout("late"), httpx.ReadError("cut")])
def test_a_server_that_is_not_there_is_an_error(error: httpx.HTTPError) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise error

    with client_of(answer) as client:
        with pytest.raises(ControlRequestError, match=r"refused|no answer within 5 s|cut") as caught:
            client.manifest("r1")
        assert caught.value.status == 0


def test_a_server_that_drips_cannot_draw_an_answer_out() -> None:
    def dripping() -> Iterator[bytes]:
        while True:
            yield b" "

    with (
        client_of(lambda _: httpx.Response(200, content=dripping()), timeout_s=0.05) as client,
        pytest.raises(ControlRequestError, match=r"no answer within 0\.05 s"),
    ):
        client.manifest("r1")


def test_a_trainer_reads_and_retires_over_the_wire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # where nothing listens
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    ledger = FileCaptureLedger(tmp_path)
    asyncio.run(ledger.record(commit_of_turn(0)))
    with served(Starlette(routes=control_routes(ledger, SECRET))) as url:
        with ControlClient(url, SECRET, 10.0) as client:
            assert client.manifest("r1").records == [commit_of_turn(0).record]
            assert client.retire(["r1", "r2"]) == RolloutRemoval(removed=["r1"], absent=["r2"])
            with pytest.raises(RolloutRetiredError):
                client.manifest("r1")
            assert client.delete(["r1"]) == RolloutRemoval(absent=["r1"])
            assert client.manifest("r1").records == []
        with ControlClient(url, "another", 10.0) as stranger, pytest.raises(ControlRequestError, match="HTTP 401"):
            stranger.manifest("r1")
    asyncio.run(ledger.close())
