"""The example that reports observations, run against a model server with capture: every call has one owner."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from gym_ray.agents import AgentRunner, ServerUrls
from gym_ray.environments import build_environment_app
from gym_ray.environments.mcqa import McqaEnvironment
from gym_ray.evidence.exact_join import exact_join
from gym_ray.evidence.matching import CallIdentity
from gym_ray.evidence.observations import validated_bundle
from gym_ray.model_call_capture.call_views import read_views
from gym_ray.model_server.engine import EngineRequest
from gym_ray.model_server.serving import AppServer
from gym_ray.settings import CallableAgentOptions, ResourcesServerRef, RunSettings, ServerSettings
from gym_ray.testing.agent_servers import message_item, responses_answer
from gym_ray.testing.captured_model import captured_model
from gym_ray.testing.fake_engine import FakeEngine
from gym_ray.testing.script import ScriptedAnswer

EXAMPLES = Path(__file__).parents[2] / "examples"
ROW = (EXAMPLES / "mcqa" / "questions.jsonl").read_bytes().splitlines()[0]
TEXTS = ["Banana", "no, the letter is missing", f"\\boxed{{{json.loads(ROW)['expected_answer']}}}"]


class Script:
    """Gives the texts one after the other, each in an answer with an id of its own."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []

    def __call__(self, request: EngineRequest) -> ScriptedAnswer:
        number = len(self.bodies)
        self.bodies.append(request.body)
        fields = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "status": "completed"}
        answer = responses_answer(message_item(TEXTS[number], f"msg_{number}"), id=f"resp_{number}", **fields)
        return ScriptedAnswer([json.dumps(answer).encode()])


async def test_each_captured_call_belongs_to_the_one_who_made_it(tmp_path: Path) -> None:
    script = Script()
    options = CallableAgentOptions(
        callable=f"{EXAMPLES / 'agents' / 'observing_agent.py'}:agent", resources_server=ResourcesServerRef(name="mcqa")
    )
    settings = RunSettings(servers={"mine": ServerSettings("mine", "responses_api_agents", "callable_agent", options)})
    async with AsyncExitStack() as held:
        model = await held.enter_async_context(captured_model(tmp_path, FakeEngine(script=script)))
        desk = AppServer(build_environment_app(McqaEnvironment(), "mcqa"))
        await desk.start()
        held.push_async_callback(desk.stop, 1.0)
        urls = ServerUrls({"policy_model": model.url}, {"mcqa": desk.url})
        runner = AgentRunner(settings, urls, run_token=None)
        held.push_async_callback(runner.aclose)
        result = await runner.run(ROW, "0-0", "mine", 30.0)
        calls, unreadable = read_views((tmp_path / "0-0.capture.jsonl").read_bytes())
    assert result.failure is None, result.failure
    assert result.reply is not None
    reply = json.loads(result.reply)
    assert (reply["reward"], unreadable) == (1.0, 0)

    joined = exact_join(validated_bundle(reply["ng_agent_observations"]), [CallIdentity.of(call) for call in calls])
    assert joined.owners == ("solver", "checker", "solver")
    assert joined.bundle["gaps"] == []
    solver, checker = joined.bundle["records"]
    assert (solver["parent_invocation_id"], checker["parent_invocation_id"]) == (None, "solver")
    refs = [ref["model_call_id"] for each in (solver, checker) for ref in each["model_calls"]]
    assert sorted(refs) == sorted(call.fields["model_call_id"] for call in calls)
    said = [
        item for item in solver["conversation"] if item["role"] == "assistant" and isinstance(item["content"], list)
    ]
    assert [item["content"][0]["text"] for item in said[-2:]] == [TEXTS[0], TEXTS[2]]
    assert TEXTS[0] in script.bodies[1]["input"][-1]["content"]
    assert TEXTS[1] in script.bodies[2]["input"][-1]["content"]
