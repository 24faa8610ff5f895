"""The tool loop over the Responses dialect (D142-D144).

Each step sends the original body with everything produced so far; the model's items are carried on exactly as they
came. A model call is delivered at most once: what failed after delivery ends the attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from gym_ray import exact_json
from gym_ray.agents.context import RunContext
from gym_ray.agents.delivery import RolloutCookies, post_once
from gym_ray.agents.failures import AGENT_RUN_ERROR, ENGINE_UNAVAILABLE, model_call_class
from gym_ray.agents.loop_log import LoopLog, ToolRun
from gym_ray.agents.resources_session import UNKNOWN_TOOL, ResourcesSession
from gym_ray.errors import AgentError

__all__ = ["ResponsesLoop"]

_TERMINATION_MESSAGES = {
    "empty_output": "the model produced no output item",
    "incomplete_reasoning": "the model produced neither a message nor a tool call",
}


@dataclass(slots=True)
class ResponsesLoop:
    """One rollout's conversation with one model server.

    Attributes:
        ctx: The attempt's surroundings.
        model_server: Name of the model server.
        session: Where tools are called; None answers every call with an error text.
        max_steps: Stop after the tools of this many model calls; None means no bound.
        model_cookies: What the model server set.
        log: What the loop did.
        clock: Seconds since the epoch.
        timer: Seconds since whenever, never stepping back.
    """

    ctx: RunContext
    model_server: str
    session: ResourcesSession | None
    max_steps: int | None = None
    model_cookies: RolloutCookies = field(default_factory=RolloutCookies)
    log: LoopLog = field(default_factory=LoopLog)
    clock: Callable[[], float] = time.time
    timer: Callable[[], float] = time.perf_counter

    async def run(self, params: dict[str, Any]) -> dict[str, Any]:
        """Run the loop and return the final response: the last one, with every produced item and the summed usage.

        Raises:
            AgentError: A model call failed or did not answer with a Responses object, or a tool could not be reached.
        """
        log = self.log
        log.items = _input_items(params)
        given = len(log.items)
        # The loop reads whole answers, so a row cannot ask for a stream.
        body = {key: value for key, value in params.items() if key != "stream"}
        usage: dict[str, Any] | None = None
        while True:
            step = log.ask(self.clock())
            response = await self._call_model({**body, "input": log.items})
            usage = _add_usage(usage, response.get("usage"))
            output = response["output"]
            log.items.extend(output)
            step.answered, step.response_id = len(output), _id_of(response)
            calls = [item for item in output if item.get("type") == "function_call"]
            if response.get("incomplete_details") is not None:
                log.incomplete = True
                break
            if not calls:
                if not any(item.get("type") == "message" and item.get("role") == "assistant" for item in output):
                    response = _mark_incomplete(response, "incomplete_reasoning" if output else "empty_output")
                    log.incomplete = True
                break
            log.items.extend([await self._call_tool(call) for call in calls])
            step.tools_run = len(log.tools)
            if self.max_steps is not None and len(log.steps) >= self.max_steps:
                log.incomplete = True
                break
        return {**response, "output": log.items[given:], "usage": usage}

    async def _call_model(self, body: dict[str, Any]) -> dict[str, Any]:
        what = f"model server {self.model_server}: POST /v1/responses"
        try:
            answer = await post_once(
                self.ctx.http,
                f"{self.ctx.base_url(self.model_server)}/responses",
                exact_json.dumps(body),
                cookies=self.model_cookies,
                headers={"authorization": f"Bearer {self.ctx.api_key}"},
                connect_patience_s=self.ctx.connect_patience_s,
            )
        except httpx.TransportError as error:
            raise AgentError(ENGINE_UNAVAILABLE, f"{what}: {type(error).__name__}: {error}") from error
        status = answer.status_code
        if not answer.is_success:
            problem = f"{what} answered {status}: {answer.text[:300]}"
            raise AgentError(model_call_class(status), problem, status, answer.text)
        response = exact_json.loads_object(answer.content)
        output = response.get("output") if response is not None else None
        if response is None or not isinstance(output, list) or not all(isinstance(item, dict) for item in output):
            problem = f"{what} answered {status} with something that is not a Responses object"
            raise AgentError(AGENT_RUN_ERROR, problem, status, answer.text)
        if response.get("status") == "failed":
            problem = f"{what} answered with a failed response: {response.get('error')}"
            raise AgentError(AGENT_RUN_ERROR, problem, status, answer.text)
        return response

    async def _call_tool(self, call: dict[str, Any]) -> dict[str, Any]:
        """Execute one function call and return its output item (D143)."""
        name, call_id = call.get("name"), call.get("call_id")
        if not isinstance(name, str) or not isinstance(call_id, str):
            problem = "model server {}: a function_call item lacks its {}".format(
                self.model_server, "name" if not isinstance(name, str) else "call_id"
            )
            raise AgentError(AGENT_RUN_ERROR, problem)
        started_at, began = self.clock(), self.timer()
        output, error_type = await self._tool_output(name, call.get("arguments"))
        duration_ms = (self.timer() - began) * 1000.0
        self.log.tools.append(ToolRun(call_id, name, started_at, duration_ms, output, error_type))
        return {"type": "function_call_output", "call_id": call_id, "output": output}

    async def _tool_output(self, name: str, arguments: object) -> tuple[str, str | None]:
        """Return what the model is told, and the type of the error if that is one."""
        try:
            if not isinstance(arguments, str):
                raise ValueError(f"expected JSON text, got {type(arguments).__name__}")  # noqa: TRY301, TRY004
            parsed = exact_json.loads(arguments.encode("utf-8", "surrogatepass"))
        except ValueError as error:
            told = exact_json.dumps({"error": f"Invalid tool call arguments: {error}"}).decode()
            return told, type(error).__name__
        if self.session is None:
            return exact_json.dumps({"error": f"Unknown tool: {name}"}).decode(), UNKNOWN_TOOL
        reply = await self.session.run_tool(name, parsed)
        return reply.text, reply.error_type


def _input_items(params: dict[str, Any]) -> list[Any]:
    given = params.get("input")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if isinstance(given, list):
        return list(given)
    problem = f"responses_create_params.input: expected text or a list of items, got {type(given).__name__}"
    raise AgentError(AGENT_RUN_ERROR, problem)


def _id_of(response: dict[str, Any]) -> str | None:
    response_id = response.get("id")
    return response_id if isinstance(response_id, str) and response_id else None


def _mark_incomplete(response: dict[str, Any], reason: str) -> dict[str, Any]:
    metadata = {
        **(response.get("metadata") or {}),
        "ng_termination_reason": reason,
        "ng_termination_message": _TERMINATION_MESSAGES[reason],
    }
    return {**response, "status": "incomplete", "metadata": metadata}


def _add_usage(total: dict[str, Any] | None, usage: object) -> dict[str, Any] | None:
    """Add one call's usage to the sum; a missing one contributes nothing, not zeros (D144)."""
    if not isinstance(usage, dict):
        return total
    result = dict(total or {})
    for key, value in usage.items():
        before = result.get(key)
        if isinstance(value, dict):
            result[key] = _add_usage(before if isinstance(before, dict) else None, value)
        elif _is_number(value) and _is_number(before):
            result[key] = before + value
        elif value is not None or key not in result:
            result[key] = value
    return result


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
