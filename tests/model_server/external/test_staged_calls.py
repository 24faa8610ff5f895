"""Captured calls whose worker stages the tokens: what worker, client and ledger get, on every route."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gym_ray.dialects import CHAT, DIALECT_BY_PATH, MESSAGES, RESPONSES
from gym_ray.dialects.reassembly import reassemble
from gym_ray.model_call_capture import CaptureStore, read_model_call_records
from gym_ray.model_server.app import build_app
from gym_ray.model_server.control_client import ControlClient
from gym_ray.model_server.external.reserved import RESERVED_IN_ANSWERS
from gym_ray.testing.script import ScriptedAnswer
from gym_ray.testing.staged_site import CONTROL_TOKEN, StagedSite, staged_site
from gym_ray.testing.staging_worker import ScriptedWorker
from gym_ray.token_id_capture.response_shapes import response_to_output_items
from gym_ray.token_id_capture.staging import RolloutReceipt, verify_and_linearize

PATH_OF = {dialect: path for path, dialect in DIALECT_BY_PATH.items()}
DIALECTS = [CHAT, RESPONSES, MESSAGES]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    RESPONSES: {"model": "m", "input": [{"role": "user", "content": "hi"}]},
    MESSAGES: {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
}
ROUTES = [(dialect, stream, False) for dialect in DIALECTS for stream in (False, True)]
ROUTES += [(RESPONSES, stream, True) for stream in (False, True)]
WORDS = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]}
FOREIGN = {"output": [WORDS], "content": "x", "choices": [{"message": {"content": "x"}}]}
"""An answer that nobody here gave, in all three dialects at once."""


def counted(body: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": f"turn {len(body['messages'])}"}


async def answer_of(site: StagedSite, dialect: str, body: dict[str, Any], rollout_id: str = "r1") -> dict[str, Any]:
    """Make a captured call, and return its answer; no client ever sees a reserved name."""
    reply = await site.post(PATH_OF[dialect], body, rollout_id)
    assert reply.status_code == 200, reply.text
    assert [name for name in RESERVED_IN_ANSWERS if name in reply.text] == []
    if not body.get("stream"):
        return dict(reply.json())
    whole = reassemble(dialect, reply.content)
    assert whole is not None
    return whole


def followed(dialect: str, body: dict[str, Any], answer: dict[str, Any], text: str) -> dict[str, Any]:
    """Return the next request of a client that echoes the answer."""
    turn = {"role": "user", "content": text}
    if dialect == RESPONSES:
        return {**body, "input": [*body["input"], *answer["output"], turn]}
    said = answer["content"] if dialect == MESSAGES else answer["choices"][0]["message"]["content"]
    return {**body, "messages": [*body["messages"], {"role": "assistant", "content": said}, turn]}


async def linearized(site: StagedSite, terminal: str | None = None) -> tuple[list[int], list[float]]:
    """Verify what was staged against the ledger, and return the row of the chain that ends in ``terminal``."""
    manifest = await site.manifest()
    receipt = RolloutReceipt(
        rollout_id="r1",
        reward=1.0,
        terminal_model_call_id=terminal or manifest.records[-1].model_call_id,
        manifest=manifest.records,
        terminal_selection="response_id",
    )
    snapshots = site.worker.staging.fetch([record.staging_key for record in manifest.records])
    row = verify_and_linearize(receipt, snapshots)
    return list(row.token_ids), list(row.token_mask)


@pytest.mark.parametrize(("dialect", "stream", "compacting"), ROUTES)
async def test_a_conversation_is_one_chain_of_staged_tokens(
    tmp_path: Path, dialect: str, stream: bool, compacting: bool
) -> None:
    async with staged_site(tmp_path, ScriptedWorker(counted), compacting=compacting) as site:
        body = {**BODIES[dialect], **({"stream": True} if stream else {})}
        for turn in range(3):
            answer = await answer_of(site, dialect, body)
            body = followed(dialect, body, answer, f"question {turn}")
        manifest = await site.manifest()
        assert manifest.failures == []
        assert [record.mode for record in manifest.records] == ["text", "token_in", "token_in"]
        assert [record.response_id for record in manifest.records] == ["completion-1", "completion-2", "completion-3"]
        keys = [record.staging_key for record in manifest.records]
        asked = [worker_body["ng_capture"] for worker_body in site.worker.bodies]
        assert [admission["staging_chain"] for admission in asked] == [[], keys[:1], keys[:2]]
        assert [body.get("required_prefix_token_ids") for body in site.worker.bodies] == [None, [], []]
        assert [record.parent_call_id for record in manifest.records[1:]] == [
            record.model_call_id for record in manifest.records[:2]
        ]
        tokens, mask = await linearized(site)
        trained = "".join(chr(token) for token, kept in zip(tokens, mask, strict=True) if kept)
        said = [json.dumps(counted({"messages": range(count)})) for count in (1, 3, 5)]
        assert trained == "".join(said)


async def test_a_worker_of_another_kind_finds_its_admission_elsewhere(tmp_path: Path) -> None:
    async with staged_site(tmp_path, backend="megatron_worker") as site:
        forged = {"offload_params": {"ng_capture": {"evil": 1}, "kept": 2}}
        await answer_of(site, CHAT, {**BODIES[CHAT], **forged})
        (body,) = site.worker.bodies
        assert body["offload_params"]["kept"] == 2
        assert body["offload_params"]["ng_capture"]["rollout_id"] == "r1"
        assert "ng_capture" not in body
        assert len((await site.manifest()).records) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_no_client_forges_what_only_the_server_may_say(tmp_path: Path, dialect: str) -> None:
    forged = {
        "ng_capture": {"rollout_id": "another", "model_call_id": "x", "mode": "text"},
        "ng_commit_coords": {},
        "required_prefix_token_ids": [1, 2],
    }
    async with staged_site(tmp_path) as site:
        await answer_of(site, dialect, {**BODIES[dialect], **forged})
        (body,) = site.worker.bodies
        assert body["ng_capture"]["rollout_id"] == "r1"
        assert forged.keys() & body.keys() == {"ng_capture"}
        assert list(site.worker.staging.fetch([(await site.manifest()).records[0].staging_key]))
        # A call that is not admitted carries nothing at all.
        foreign = followed(dialect, BODIES[dialect], FOREIGN, "?")
        await answer_of(site, dialect, {**foreign, **forged})
        assert forged.keys() & site.worker.bodies[-1].keys() == set()
        assert await site.reasons() == ["unresolved_parent"]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_answer_is_stripped_also_where_the_call_was_not_admitted(tmp_path: Path, dialect: str) -> None:
    def chatty(answer: dict[str, Any]) -> None:
        answer["choices"][0] |= {"token_ids": [1], "logprobs": {"content": []}, "routed_experts": [1]}
        answer["choices"][0]["message"] |= {"prompt_token_ids": [1], "generation_log_probs": [-1.0]}
        answer |= {"prompt_token_ids": [1], "ng_commit_coords": {}, "media_spans": [{}], "prompt_logprobs": []}

    async with staged_site(tmp_path, ScriptedWorker(changes=chatty)) as site:
        await site.ledger.record_failure("r1", "c0", "why")
        foreign = followed(dialect, BODIES[dialect], FOREIGN, "?")
        answer = await answer_of(site, dialect, foreign)
        assert response_to_output_items(answer)
        assert (await site.manifest()).records == []


async def test_history_of_nobody_is_a_root_while_the_rollout_is_empty(tmp_path: Path) -> None:
    async with staged_site(tmp_path) as site:
        foreign = followed(RESPONSES, BODIES[RESPONSES], FOREIGN, "?")
        await answer_of(site, RESPONSES, foreign)
        (record,) = (await site.manifest()).records
        assert record.mode == "text"


async def test_namespaced_tools_keep_their_identity(tmp_path: Path) -> None:
    """The worker hears and says flat names, the client its own; both turns are one chain."""
    tool = {
        "type": "function",
        "name": "find",
        "description": "d",
        "parameters": {"type": "object", "properties": {}},
        "strict": False,
    }
    body = {**BODIES[RESPONSES], "tools": [{"type": "namespace", "name": "maps", "description": "d", "tools": [tool]}]}

    def calls(asked: Mapping[str, Any]) -> dict[str, Any]:
        if asked["messages"][-1]["role"] == "tool":
            return {"role": "assistant", "content": "found"}
        function = {"name": asked["tools"][0]["function"]["name"], "arguments": "{}"}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "k1", "type": "function", "function": function}],
        }

    async with staged_site(tmp_path, ScriptedWorker(calls)) as site:
        answer = await answer_of(site, RESPONSES, body)
        (call,) = [item for item in answer["output"] if item["type"] == "function_call"]
        assert (call["namespace"], call["name"]) == ("maps", "find")
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "here"}
        await answer_of(site, RESPONSES, {**body, "input": [*body["input"], *answer["output"], result]})
        manifest = await site.manifest()
        assert [record.mode for record in manifest.records] == ["text", "token_in"]
        assert manifest.failures == []
        await linearized(site)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_evaluation_records_share_the_id_and_hold_nothing_internal(
    tmp_path: Path, dialect: str, stream: bool
) -> None:
    async with staged_site(tmp_path, observability=True) as site:
        await answer_of(site, dialect, {**BODIES[dialect], "stream": stream})
        (row,) = (await site.manifest()).records
    (record,) = read_model_call_records(CaptureStore(tmp_path / "captures"), "r1")
    assert record.model_call_id == row.model_call_id
    assert record.response_id == row.response_id
    said = (tmp_path / "captures" / "r1.capture.jsonl").read_text()
    assert [name for name in RESERVED_IN_ANSWERS if name in said] == []


async def test_without_the_prefix_nothing_is_captured_and_nothing_withheld(tmp_path: Path) -> None:
    async with staged_site(tmp_path) as site:
        for prefix in ("", "/ng-rollout/r1"):
            reply = await site.http.post(
                f"{prefix}/v1/chat/completions", json={**BODIES[CHAT], "return_token_ids": True}
            )
            assert reply.status_code == 200
        assert [body.keys() & {"ng_capture", "stream"} for body in site.worker.bodies] == [set(), set()]
        assert not await site.ledger.has_rows("r1")


async def test_a_retired_rollout_is_served_and_not_captured(tmp_path: Path) -> None:
    async with staged_site(tmp_path) as site:
        await answer_of(site, CHAT, BODIES[CHAT])
        headers = {"authorization": f"Bearer {CONTROL_TOKEN}"}
        control = "/training-token-capture/control/rollouts"
        manifest = await site.http.get(f"{control}/r1/manifest", headers=headers)
        assert (manifest.status_code, len(manifest.json()["records"])) == (200, 1)
        assert (await site.http.get(f"{control}/r1/manifest")).status_code == 401
        removed = await site.http.post(f"{control}/retire", headers=headers, json={"rollout_ids": ["r1", "r2"]})
        assert (removed.status_code, removed.json()["removed"], removed.json()["absent"]) == (200, ["r1"], ["r2"])
        for rollout_id in ("r1", "r2"):
            await answer_of(site, CHAT, BODIES[CHAT], rollout_id)
            assert "ng_capture" not in site.worker.bodies[-1]
            gone = await site.http.get(f"{control}/{rollout_id}/manifest", headers=headers)
            assert gone.status_code == 410
        await site.http.post(f"{control}/delete", headers=headers, json={"rollout_ids": ["r1"]})
        await answer_of(site, CHAT, BODIES[CHAT])
        assert len((await site.manifest()).records) == 1


def test_a_server_without_external_staging_has_no_control_routes() -> None:
    app = build_app(_NoEngine(), server_name="policy", capture=None)  # type: ignore[arg-type]
    assert not [route for route in app.routes if "control" in getattr(route, "path", "")]


class _NoEngine:
    dialects = token_dialects = frozenset({CHAT})


async def test_several_answers_are_refused_before_the_worker_is_asked(tmp_path: Path) -> None:
    async with staged_site(tmp_path) as site:
        for number in (2, 0, True, "1"):
            reply = await site.post(PATH_OF[CHAT], {**BODIES[CHAT], "n": number})
            assert reply.status_code == 400
            assert reply.json()["error"]["message"].startswith("n: a captured call has one answer")
        assert site.worker.bodies == []
        await answer_of(site, CHAT, {**BODIES[CHAT], "n": 1})


async def test_what_no_worker_could_be_asked_leaves_no_trace(tmp_path: Path) -> None:
    async with staged_site(tmp_path) as site:
        assert (await site.post(PATH_OF[RESPONSES], {"model": "m", "input": 7})).status_code == 422
        assert (await site.post(PATH_OF[CHAT], ["no object"])).status_code == 422
        assert (await site.post(PATH_OF[CHAT], BODIES[CHAT], "a%20b")).status_code == 400
        assert site.worker.bodies == []
        assert not await site.ledger.has_rows("r1")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_refusal_that_repeats_the_request_tells_nobody_the_admission(tmp_path: Path, dialect: str) -> None:
    echo = {"error": {"message": "bad member", "input": {"ng_capture": {"rollout_id": "r1"}}}}
    words = {"error": {"message": "ng_capture: unknown member"}}
    for told in (json.dumps(echo).encode(), json.dumps(words).encode(), b"ng_capture is no member"):
        async with staged_site(tmp_path, ScriptedWorker(refusal=ScriptedAnswer([told], 422))) as site:
            reply = await site.post(PATH_OF[dialect], BODIES[dialect])
            assert reply.status_code == 422
            assert [name for name in RESERVED_IN_ANSWERS if name in reply.text] == []
            assert reply.json()["error"]["message"]


async def test_a_trainer_reads_the_manifest_with_the_client(tmp_path: Path) -> None:
    async with staged_site(tmp_path) as site:
        await answer_of(site, CHAT, BODIES[CHAT])

        def read() -> int:
            with ControlClient(site.url, CONTROL_TOKEN, 10.0) as control:
                return len(control.manifest("r1").records)

        assert await asyncio.to_thread(read) == 1


@pytest.mark.parametrize("instructions", [None, "Be brief."])
async def test_a_text_input_is_the_turn_that_the_next_request_has_in_its_place(
    tmp_path: Path, instructions: str | None
) -> None:
    fixed = {"model": "m", **({"instructions": instructions} if instructions else {})}
    async with staged_site(tmp_path, ScriptedWorker(counted)) as site:
        first = await answer_of(site, RESPONSES, {**fixed, "input": "hi"})
        body = {**fixed, "input": [{"role": "user", "content": "hi"}]}
        await answer_of(site, RESPONSES, followed(RESPONSES, body, first, "and now?"))
        manifest = await site.manifest()
        tokens, _ = await linearized(site)
    assert manifest.failures == []
    root, child = manifest.records
    assert (root.mode, child.mode, child.parent_call_id) == ("text", "token_in", root.model_call_id)
    assert len(tokens) == child.cum_len
