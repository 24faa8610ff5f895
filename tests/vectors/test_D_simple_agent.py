"""The tool loop against scripted replies: the HTTP calls it makes, the cookies it ends with, its final response,
and the trajectory that it reports (D142-D145).
"""

from __future__ import annotations

from typing import Any

from gym_ray.agents.context import RunContext, ServerUrls
from gym_ray.agents.loop_log import producer_trajectory
from gym_ray.agents.responses_loop import ResponsesLoop
from gym_ray.correlation import split_resources_prefix
from gym_ray.testing.agent_servers import Arrival, ScriptedModel, ScriptedResources, in_process_client

ANY = "ANY_STRING"
FROZEN = 100.0


def as_call(arrival: Arrival) -> dict[str, Any]:
    path = arrival.path
    if arrival.server != "policy_model":
        split = split_resources_prefix(path)
        assert split is not None, "a resources call must carry the rollout's prefix too"
        assert split.rollout_id == "0-0"
        path = split.rest
    return {"server": arrival.server, "path": path, "json": arrival.json, "cookies": arrival.cookies or None}


def matches(expected: Any, found: Any) -> bool:
    if expected == ANY:
        return isinstance(found, str) and bool(found)
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() == found.keys() and all(matches(expected[k], found[k]) for k in expected)
    return bool(expected == found)


def without_nulls(value: Any) -> Any:
    """The vectors leave null members out, save in what a model does not look into."""
    if isinstance(value, dict):
        return {key: without_nulls(member) for key, member in value.items() if member is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


async def test_vector(case: dict[str, Any]) -> None:
    script, arrivals = case["script"], []
    model = ScriptedModel(script["model"], {"mc": "m1"}, arrivals)
    tools = [(status, text, cookies) for status, text, cookies in script["tools"]]
    resources = ScriptedResources(tools, arrivals=arrivals, name="toy_res")
    urls = ServerUrls({"policy_model": "http://model"}, {"toy_res": "http://resources"})
    async with in_process_client({"http://model": model, "http://resources": resources}) as http:
        ctx = RunContext("0-0", http, "unused", urls, connect_patience_s=0.0)
        session = ctx.open_session("toy_res")
        await session.seed({"responses_create_params": {"input": "question"}})
        arrivals.clear()
        loop = ResponsesLoop(
            ctx, "policy_model", session, script["max_steps"], clock=lambda: FROZEN, timer=lambda: FROZEN
        )
        response = await loop.run({"input": "question"})
    assert [as_call(arrival) for arrival in arrivals] == case["http_calls"]
    assert {"model": loop.model_cookies.as_dict(), "resources": session.cookies} == case["final_cookies"]
    found = {key: response.get(key) for key in ("id", "output", "usage", "status", "metadata")}
    assert matches(case["response"], found), found
    trajectory = producer_trajectory(loop.log, "policy_model", "0", "0-0")
    assert without_nulls(trajectory) == without_nulls(case["trajectory"])
