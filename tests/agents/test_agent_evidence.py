"""From an agent's run to its finished record, over a captured model: what agents report meets what was captured."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from gym_ray.agents import AgentRunner, ServerUrls
from gym_ray.evidence.join import join
from gym_ray.model_call_capture.call_index import RecordedCall
from gym_ray.model_call_capture.quiesce import WrittenCalls
from gym_ray.model_call_capture.store import CaptureStore
from gym_ray.model_server.engine import EngineRequest
from gym_ray.model_server.serving import AppServer
from gym_ray.settings import (
    CallableAgentOptions,
    ModelServerRef,
    ResourcesServerRef,
    RunSettings,
    ServerSettings,
    SimpleAgentOptions,
)
from gym_ray.testing.agent_servers import ScriptedResources, message_item, responses_answer
from gym_ray.testing.captured_model import captured_model
from gym_ray.testing.fake_engine import FakeEngine
from gym_ray.testing.script import ScriptedAnswer

EXAMPLES = Path(__file__).parents[2] / "examples"
ROW = {
    "responses_create_params": {"input": "question"},
    "task_id": "weather-7",
    "_ng_task_index": 0,
    "_ng_rollout_index": 0,
}
ROW_BYTES = json.dumps(ROW).encode()
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
SIMPLE = SimpleAgentOptions(
    model_server=ModelServerRef(name="policy_model"), resources_server=ResourcesServerRef(name="desk")
)
OBSERVING = CallableAgentOptions(
    callable=f"{EXAMPLES / 'agents' / 'observing_agent.py'}:agent", resources_server=ResourcesServerRef(name="desk")
)


def engine(*outputs: dict[str, Any]) -> FakeEngine:
    """Answer with these items, one a call, each in an answer with an id of its own."""
    left = iter(enumerate(outputs))

    def script(_request: EngineRequest) -> ScriptedAnswer:
        number, item = next(left)
        fields = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "status": "completed"}
        usage = {
            "input_tokens": 5,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 2,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 7,
        }
        return ScriptedAnswer([json.dumps(responses_answer(item, id=f"resp_{number}", usage=usage, **fields)).encode()])

    return FakeEngine(script=script)


async def record_of(directory: Path, kind: str, options: Any, outputs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    desk = ScriptedResources([(200, "sunny", {})], verify=lambda body: {"reward": 1.0, "resolved": True, **body})
    settings = RunSettings(
        servers={"mine": ServerSettings("mine", "responses_api_agents", kind, options)},
        observability_enabled=True,
        model_call_capture_dir=directory,
    )
    async with AsyncExitStack() as held:
        model = await held.enter_async_context(captured_model(directory, engine(*outputs)))
        desk_server = AppServer(desk)
        await desk_server.start()
        held.push_async_callback(desk_server.stop, 1.0)
        runner = AgentRunner(
            settings, ServerUrls({"policy_model": model.url}, {"desk": desk_server.url}), run_token=None
        )
        held.push_async_callback(runner.aclose)
        result = await runner.run(ROW_BYTES, "0-0", "mine", 30.0)
        assert result.failure is None, result.failure
        snapshot = await asyncio.to_thread(CaptureStore(directory).snapshot, "0-0")
        captured = [RecordedCall(each["model_call_id"], "0-0.capture.jsonl", 0, 1) for each in model.records("0-0")]
    assert len(captured) == len(outputs)
    record: dict[str, Any] = json.loads(join(ROW_BYTES, "0-0", result, snapshot, WrittenCalls(tuple(captured))).line)
    return record


async def test_the_built_in_agents_trajectory_meets_its_captured_calls(tmp_path: Path) -> None:
    record = await record_of(tmp_path, "simple_agent", SIMPLE, [CALL, message_item("done")])
    trajectory = record["ng_trajectory"]
    assert (trajectory["task_id"], trajectory["rollout_id"]) == ("weather-7", "0-0")
    assert trajectory["gaps"] == []
    assert "gaps" not in record["ng_model_call_capture"]
    calls = [call["model_call_id"] for call in trajectory["model_calls"]]
    assert calls == [call["model_call_id"] for call in record["ng_model_call_capture"]["calls"]]
    assert [call["response_metadata"]["response_id"] for call in trajectory["model_calls"]] == ["resp_0", "resp_1"]
    assert [(turn["step_count"], turn["resolved"]) for turn in trajectory["turns"]] == [(1, None), (1, True)]
    assert [tool["output"] for tool in trajectory["tool_calls"]] == ["sunny"]
    perf = record["ng_perf"]
    assert (perf["num_turns"], perf["num_tool_calls"], perf["token_observability_coverage"]) == (2, 1, 1.0)
    assert (perf["prompt_tokens"], perf["completion_tokens"]) == (10, 4)


async def test_observations_of_a_sub_agent_become_turns_of_their_own(tmp_path: Path) -> None:
    outputs = [message_item(text, f"msg_{number}") for number, text in enumerate(["red", "no", "blue"])]
    record = await record_of(tmp_path, "callable_agent", OBSERVING, outputs)
    assert record["ng_agent_observations"]["gaps"] == []
    trajectory = record["ng_trajectory"]
    assert trajectory["gaps"] == []
    turns = [(turn["invocation_id"], turn["turn_no"], turn["answer"][0]["id"]) for turn in trajectory["turns"]]
    assert turns == [("solver", 1, "msg_0"), ("checker", 1, "msg_1"), ("solver", 2, "msg_2")]
    by_call = {call["model_call_id"]: call["response_metadata"]["response_id"] for call in trajectory["model_calls"]}
    linked = [
        (by_call[ref["model_call_id"]], ref["response_id"])
        for turn in trajectory["turns"]
        for ref in turn["model_calls"]
    ]
    assert linked == [(f"resp_{number}", f"resp_{number}") for number in range(3)]
    assert record["ng_perf"]["num_turns"] == 3
