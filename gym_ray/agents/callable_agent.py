"""Any Python function as an agent: ``async def agent(row, ctx)``, or a plain ``def`` that runs in a thread."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import dataclasses
import inspect
import threading
from collections.abc import Callable
from typing import Any, cast

from gym_ray.agents.context import RunContext
from gym_ray.agents.failures import AGENT_RUN_ERROR
from gym_ray.agents.replies import checked_reward, message_response
from gym_ray.agents.resources_session import ResourcesSession
from gym_ray.errors import AgentError

__all__ = ["CallableAgent"]


class CallableAgent:
    """Runs rows by calling a function with the row and a :class:`RunContext`.

    What it returns becomes the reply: a dict as it is, a Responses object as ``response``, a text as a ``response``
    with one message. Without a reward in it the resources server scores the response, if one is configured; else the
    reward is null, which says unmeasured, never 0.

    Args:
        name: Name of the agent, for messages.
        function: The function; a synchronous one runs in a thread of its own.
        resources_server: Name of the resources server whose session ``ctx.resources`` is, or None.
        max_threads: How many runs of a synchronous function may be under way. Its thread cannot be stopped: a run
            that outlives its time goes on to its end and holds its place.
    """

    def __init__(
        self, name: str, function: Callable[..., Any], *, resources_server: str | None = None, max_threads: int = 256
    ) -> None:
        self._name, self._function, self._resources_server = name, function, resources_server
        call = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
        self._is_async = inspect.iscoroutinefunction(call)
        self._max_threads = max_threads
        self._running_threads: set[threading.Thread] = set()

    @property
    def stop_s(self) -> float:
        """Nothing but what every agent gets."""
        return 0.0

    async def run(self, row: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
        """Run one attempt.

        Raises:
            AgentError: What the function returned cannot be a reply, or the resources server failed. What the
                function itself raises passes as it is.
        """
        if self._resources_server is None:
            return await self._reply(row, ctx, None)
        session = ctx.open_session(self._resources_server)
        await session.seed(row)
        try:
            return await self._reply(row, dataclasses.replace(ctx, resources=session), session)
        finally:
            await session.close()

    async def aclose(self) -> None:
        """Hold nothing that can be freed: the threads of synchronous runs end with their function."""

    async def _reply(self, row: dict[str, Any], ctx: RunContext, session: ResourcesSession | None) -> dict[str, Any]:
        # The function gets a copy: what is verified is the row as it came, whatever the function does to its own.
        result = await self._call(copy.deepcopy(row), ctx)
        reply = self._as_reply(result, ctx.rollout_id)
        reply["reward"] = checked_reward(self._name, reply.get("reward"))
        if session is not None and reply["reward"] is None:
            if not isinstance(reply.get("response"), dict):
                problem = f"agent {self._name}: returned neither a response nor a reward, so there is nothing to verify"
                raise AgentError(AGENT_RUN_ERROR, problem)
            return {**reply, **await session.verify(row, reply["response"])}
        reply.setdefault("responses_create_params", row.get("responses_create_params"))
        return reply

    async def _call(self, row: dict[str, Any], ctx: RunContext) -> Any:
        if self._is_async:
            return await self._function(row, ctx)
        result = await self._call_in_thread(row, ctx)
        # A plain function may hand back a coroutine (a partial, a lambda around an async function).
        return await result if inspect.isawaitable(result) else result

    async def _call_in_thread(self, row: dict[str, Any], ctx: RunContext) -> Any:
        if len(self._running_threads) >= self._max_threads:
            problem = f"agent {self._name}: {self._max_threads} runs of this function are under way or never ended"
            raise AgentError(AGENT_RUN_ERROR, problem)
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Any] = loop.create_future()
        scope = contextvars.copy_context()

        def settle(result: Any, error: BaseException | None) -> None:
            self._running_threads.discard(thread)
            if ended.done():  # the attempt was cancelled meanwhile
                return
            if error is None:
                ended.set_result(result)
            else:
                ended.set_exception(error)

        def work() -> None:
            result, error = None, cast("BaseException | None", None)
            try:
                result = scope.run(self._function, row, ctx)
            except (StopIteration, KeyboardInterrupt) as raised:  # would break the future, or end the event loop
                error = RuntimeError(f"the function raised {raised!r}")
            except BaseException as other:  # noqa: BLE001 - carried over to the awaiting side
                error = other
            try:
                loop.call_soon_threadsafe(settle, result, error)
            except RuntimeError:  # the loop is closed, so nobody waits any more
                return

        thread = threading.Thread(target=work, name=f"agent {ctx.rollout_id}", daemon=True)
        self._running_threads.add(thread)
        thread.start()
        return await ended

    def _as_reply(self, result: Any, rollout_id: str) -> dict[str, Any]:
        if isinstance(result, str):
            return {"response": message_response(result, rollout_id)}
        plain = self._plain(result, "reply")
        if not isinstance(plain, dict):
            problem = f"agent {self._name}: returned a {type(result).__name__}; return a dict or a text"
            raise AgentError(AGENT_RUN_ERROR, problem)
        if plain.get("object") == "response" and isinstance(plain.get("output"), list):
            return {"response": plain}
        if isinstance(plain.get("response"), str):
            plain["response"] = message_response(plain["response"], rollout_id)
        return plain

    def _plain(self, value: Any, path: str) -> Any:
        """Return ``value`` as plain JSON values; models of the SDKs are dumped, anything else is an error."""
        if value is None or isinstance(value, str | bool | int | float):
            return value
        if isinstance(value, dict):
            return {str(key): self._plain(item, f"{path}.{key}") for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
        dump = getattr(value, "model_dump", None)
        if callable(dump):
            return self._plain(dump(mode="json"), path)
        raise AgentError(AGENT_RUN_ERROR, f"agent {self._name}: {path} is a {type(value).__name__}; return JSON values")
