from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request

from gym_ray import correlation
from gym_ray.agents import ResponsesAPIAgentConfig, RunServers, ServerClient, SimpleResponsesAPIAgent
from gym_ray.dialects import DIALECT_BY_PATH


def check_error(case: dict[str, Any], error: pytest.ExceptionInfo[ValueError]) -> None:
    for mention in case["expected"].get("mentions", []):
        assert mention in str(error.value)


def run_parse(case: dict[str, Any]) -> object:
    split = correlation.split_rollout_prefix(case["path"])
    if split is None:
        split_rest, rollout_id, tokens = case["path"], None, False
    else:
        split_rest, rollout_id, tokens = split.rest, split.rollout_id, split.token_capture
    dialect = DIALECT_BY_PATH.get(split_rest)
    return {"rollout_id": rollout_id, "token_capture": tokens, "rest": split_rest, "dialect": dialect}


def run_resources_parse(case: dict[str, Any]) -> object:
    split = correlation.split_resources_prefix(case["path"])
    if split is None:
        return {"rollout_id": None, "rest": case["path"]}
    return {"rollout_id": split.rollout_id, "rest": split.rest}


class Agent(SimpleResponsesAPIAgent):
    """Only its URL helpers are asked."""

    async def run(self, request: Request, body: dict[str, Any]) -> Any:
        raise NotImplementedError

    async def responses(self, request: Request, body: dict[str, Any]) -> Any:
        raise NotImplementedError


def agent_of(case: dict[str, Any]) -> Agent:
    config = ResponsesAPIAgentConfig(name="mine", token_id_capture=case.get("agent_token_id_capture", False))
    return Agent(config, ServerClient(RunServers.from_config(case.get("global_config"))))


def run_agent_urls(case: dict[str, Any]) -> object:
    agent, body, base = agent_of(case), case["body"], case["base_url"]
    found = {
        "rollout_id_from_run": agent.rollout_id_from_run(body),
        "url_path_for_run": agent.url_path_for_run("/v1/responses", body),
        "url_path_for_run_no_identity": agent.url_path_for_run("/v1/responses", {}),
        "base_url_for_run": agent.base_url_for_run(base, body),
        "base_url_for_run_no_identity": agent.base_url_for_run(base, {}),
    }
    if "resolve_model_base_url" in case["expected"]:
        rollout_id = correlation.derive_rollout_id(body)
        found["resolve_model_base_url"] = agent.resolve_model_base_url("policy_model", rollout_id)
        found["resolve_model_base_url_no_id"] = agent.resolve_model_base_url("policy_model")
    return found


def run_url_path_for_request(case: dict[str, Any]) -> object:
    request = None
    if case["request_path"] is not None:
        request = Request({"type": "http", "path": case["request_path"], "path_params": case["path_params"] or {}})
    return agent_of(case).url_path_for_request(case["url_path"], request)


RUNNERS = {
    "parse": run_parse,
    "resources_parse": run_resources_parse,
    "agent_urls": run_agent_urls,
    "rollout_path_prefix": lambda c: correlation.rollout_path_prefix(c["rollout_id"], c["token_capture"]),
    "apply_rollout_prefix": lambda c: correlation.apply_rollout_prefix(
        c["base_url"], c["rollout_id"], c["token_capture"]
    ),
    "redirect": lambda c: correlation.restore_prefix_in_location(
        c["location"], c["status"], c["request_host"], c["capture_prefix"]
    ),
    "url_path_for_request": run_url_path_for_request,
}


def test_vector(case: dict[str, Any]) -> None:
    if case["kind"] == "rollout_id":
        if "error" in case["expected"]:
            with pytest.raises(ValueError) as error:  # noqa: PT011 - the mentions are checked below
                correlation.derive_rollout_id(case["body"])
            check_error(case, error)
        else:
            assert correlation.derive_rollout_id(case["body"]) == case["expected"]["id"]
        return
    if case["kind"] == "http_redirect":
        location = correlation.restore_prefix_in_location(
            "http://testserver/v1/responses", case["expected"]["status"], "testserver", "/ng-rollout/3-1"
        )
        assert location == case["expected"]["location"]
        return
    assert RUNNERS[case["kind"]](case) == case["expected"]
