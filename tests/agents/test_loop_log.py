"""What the built-in agent reports of itself: references, tools, who resolved the task, and what it does not know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse

from gym_ray.agents import AgentRunner, ServerUrls
from gym_ray.agents.loop_log import LoopLog, producer_trajectory
from gym_ray.evidence.observations import validated_trajectory
from gym_ray.evidence.run_result import RunResult
from gym_ray.settings import ModelServerRef, ResourcesServerRef, RunSettings, ServerSettings, SimpleAgentOptions
from gym_ray.testing.agent_servers import (
    ScriptedModel,
    ScriptedResources,
    in_process_client,
    message_item,
    responses_answer,
)

URLS = ServerUrls({"policy_model": "http://model"}, {"desk": "http://desk"})
ROW = {"responses_create_params": {"input": "question"}, "problem_id": 7, "_ng_task_index": 3}
REF = {"type": "responses_api_models", "name": "policy_model"}


def tool_call(arguments: str = "{}", name: str = "look") -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c1", "name": name, "arguments": arguments}


async def run(
    answers: list[dict[str, Any]], desk: ScriptedResources, *, observability: bool = True, **options: Any
) -> RunResult:
    agent = SimpleAgentOptions(
        model_server=ModelServerRef(name="policy_model"), resources_server=ResourcesServerRef(name="desk"), **options
    )
    settings = RunSettings(
        servers={"agent": ServerSettings("agent", "responses_api_agents", "simple_agent", agent)},
        observability_enabled=observability,
        model_call_capture_dir=Path("/captures"),
    )
    async with in_process_client({"http://model": ScriptedModel(answers), "http://desk": desk}) as http:
        runner = AgentRunner(settings, URLS, run_token=None, http=http, connect_patience_s=0.0)
        try:
            return await runner.run(json.dumps(ROW).encode(), "3-0-a1", "agent", 30.0)
        finally:
            await runner.aclose()


async def trajectory(answers: list[dict[str, Any]], desk: ScriptedResources | None = None, **options: Any) -> Any:
    result = await run(answers, desk or ScriptedResources(), **options)
    assert result.failure is None, result.failure
    assert result.reply is not None
    found = json.loads(result.reply)["ng_trajectory"]
    assert validated_trajectory(found) == found, "whole, and valid"
    return found


async def test_the_trajectory_names_its_task_its_attempt_and_its_calls() -> None:
    answers = [responses_answer(tool_call(), id="r0"), responses_answer(message_item("done"), id="r1")]
    found = await trajectory(answers, ScriptedResources([(200, "sunny", {})]))
    assert (found["task_id"], found["rollout_id"]) == ("7", "3-0-a1")
    [root] = found["invocations"]
    refs = [{"model_call_id": None, "model_ref": REF, "response_id": each} for each in ("r0", "r1")]
    assert root["model_calls"] == refs
    assert [turn["model_calls"] for turn in found["turns"]] == [[refs[0]], [refs[1]]]
    assert [turn["step_count"] for turn in found["turns"]] == [1, 1]
    assert [item["type"] for item in root["conversation"]] == [
        "message",
        "function_call",
        "function_call_output",
        "message",
    ]
    assert found["turns"][1]["question"] == root["conversation"][:3]
    assert found["turns"][1]["answer"] == root["conversation"][3:]
    [tool] = found["tool_calls"]
    assert tool["completed_at"] >= tool["started_at"] >= found["turns"][0]["timestamp"] > 0
    assert (tool["status"], tool["error_type"], tool["output"]) == ("completed", None, "sunny")


@pytest.mark.parametrize(
    ("call", "status", "outcome"),
    [
        (tool_call(), 204, ("completed", None)),
        (tool_call(), 304, ("completed", None)),
        (tool_call(), 404, ("failed", "http_404")),
        (tool_call(), 500, ("failed", "http_500")),
        (tool_call("{oops"), 200, ("failed", "JSONDecodeError")),
        (tool_call(name="verify"), 200, ("failed", "unknown_tool")),
    ],
)
async def test_tools_end_as_their_answers_say(call: dict[str, Any], status: int, outcome: tuple[str, Any]) -> None:
    answers = [responses_answer(call), responses_answer(message_item("done"))]
    found = await trajectory(answers, ScriptedResources([(status, "", {})]))
    [tool] = found["tool_calls"]
    assert (tool["status"], tool["error_type"]) == outcome
    assert tool["timing_source"] == "executor"


@pytest.mark.parametrize("nothing", [None, "", 5])
async def test_a_call_without_an_id_is_a_gap_and_never_a_guess(nothing: Any) -> None:
    answers = [responses_answer(tool_call()), responses_answer(message_item("done"), id=nothing)]
    found = await trajectory(answers, ScriptedResources([(200, "", {})]))
    assert {"code": "model_call_reference_unavailable", "invocation_id": "root", "detail": "turn:2"} in found["gaps"]
    assert len(found["invocations"][0]["model_calls"]) == 1
    assert found["turns"][1]["model_calls"] == []


@pytest.mark.parametrize(
    ("resolved", "known"), [(True, True), (False, True), (None, False), (1, False), ("yes", False)]
)
async def test_only_a_verifier_resolves_a_task(resolved: Any, known: bool) -> None:
    desk = ScriptedResources([(200, "", {})], verify=lambda body: {"reward": 1.0, "resolved": resolved})
    found = await trajectory([responses_answer(tool_call()), responses_answer(message_item("done"))], desk)
    assert [turn["resolved"] for turn in found["turns"]] == [None, resolved if known else None]
    unknown = {"code": "resolution_unavailable", "invocation_id": "root", "detail": None}
    assert found["gaps"] == ([] if known else [unknown])


async def test_a_skipped_verification_resolves_nothing() -> None:
    found = await trajectory([responses_answer(message_item("hi"))], skip_verification=True)
    assert [gap["code"] for gap in found["gaps"]] == ["resolution_unavailable"]


@pytest.mark.parametrize(
    ("fields", "output"),
    [({}, [{"type": "reasoning", "id": "z", "summary": []}]), ({}, []), ({"incomplete_details": {}}, [tool_call()])],
)
async def test_a_run_that_was_cut_short_says_so(fields: dict[str, Any], output: list[Any]) -> None:
    found = await trajectory([responses_answer(*output, **fields)])
    assert found["invocations"][0]["status"] == "incomplete"
    assert found["tool_calls"] == []


async def test_an_item_that_nobody_can_read_leaves_a_gap_and_stays_in_its_turn() -> None:
    strange = {"type": "hologram", "light": 3}
    found = await trajectory([responses_answer(strange, message_item("hi"))])
    gap = {"code": "conversation_unavailable", "invocation_id": "root", "detail": "item 1: union_tag_invalid"}
    assert gap in found["gaps"]
    assert found["invocations"][0]["conversation"] == []
    assert found["turns"][0]["answer"] == [strange, message_item("hi")]


async def test_there_is_none_without_capture_nor_after_a_failure() -> None:
    result = await run([responses_answer(message_item("hi"))], ScriptedResources(), observability=False)
    assert result.reply is not None
    assert "ng_trajectory" not in json.loads(result.reply)
    refusing = ScriptedResources(verify=lambda body: JSONResponse({}, 500))
    result = await run([responses_answer(message_item("hi"))], refusing)
    assert result.failure is not None
    assert result.reply is None


def test_text_that_is_no_unicode_ends_nothing() -> None:
    log = LoopLog(items=[{"role": "user", "content": "\ud800"}])
    step = log.ask(1.0)
    log.items.append({"type": "function_call", "call_id": "\udfff", "name": "\ud800", "arguments": ""})
    step.answered, step.response_id = 1, "\ud800"
    found = producer_trajectory(log, "policy_model", "\ud800", "0-0")
    assert found["turns"][0]["model_calls"][0]["response_id"] == "\ud800"
    assert found["gaps"] == []
