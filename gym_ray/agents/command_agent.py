"""Any command line program as an agent: its model calls are captured because its environment says where to send them.

The program runs as it is: the official SDKs, and what is built on them, read their base URL and key from there. Only
the row's parameters reach it, never what a verifier compares its answer with, and the run's token stands in its
environment and nowhere else.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gym_ray import exact_json
from gym_ray.agents.command_files import CommandFiles
from gym_ray.agents.command_process import CommandEnd, CommandLine, OutputTail, run_command
from gym_ray.agents.context import NO_API_KEY, RunContext
from gym_ray.agents.failures import AGENT_REQUEST_FAILED, AGENT_RUN_ERROR
from gym_ray.agents.hiding import hide
from gym_ray.agents.replies import checked_reward, message_response
from gym_ray.errors import AgentError, AgentTimeoutError
from gym_ray.settings import CommandAgentOptions
from gym_ray.settings.problems import is_secret_key

__all__ = ["CommandAgent"]

_PLACEHOLDER = re.compile(r"\{(input_file|output_file|rollout_id|model|python|start_directory)\}")
_SHOWN_CHARS = 900
"""Of each output of a command that failed; a failure keeps 2,000 characters (D35)."""


class CommandAgent:
    """Runs rows by running a command for each.

    The answer is what the command writes, and becomes the text of the ``response``. A resources server scores it.
    Without one, a JSON object with ``reward`` on the last line of standard output gives the reward and is no part of
    the answer; without that the reward is null, which says unmeasured.

    Args:
        name: Name of the agent, for messages.
        options: Its settings.
    """

    def __init__(self, name: str, options: CommandAgentOptions) -> None:
        self._name, self._options = name, options
        self._resources_server = options.resources_server.name if options.resources_server else None
        self._secrets = [value for key, value in options.environment.items() if is_secret_key(key)]

    @property
    def stop_s(self) -> float:
        """What ending a cancelled run may take beyond the usual."""
        return self._options.kill_grace_s

    async def run(self, row: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
        """Run one attempt; no process of it is left when this returns or raises.

        Returns:
            The verifier's reply or, without one, ``response`` and ``reward``; with ``command``: how the command ended.

        Raises:
            AgentError: ``agent_run_error`` when the command failed, ``agent_request_failed`` when no process could be
                made, ``agent_timeout`` (:class:`AgentTimeoutError`) when it did not end within ``timeout_s``.
        """
        params = row.get("responses_create_params")
        if not isinstance(params, dict):
            raise AgentError(AGENT_RUN_ERROR, "responses_create_params: the row needs this object")
        if self._resources_server is None:
            return {**await self._reply(params, ctx), "responses_create_params": params}
        session = ctx.open_session(self._resources_server)
        await session.seed(row)
        try:
            reply = await self._reply(params, ctx)
            return {"command": reply["command"], **await session.verify(row, reply["response"])}
        finally:
            await session.close()

    async def aclose(self) -> None:
        """Hold nothing that can be freed: a command ends with its run."""

    async def _reply(self, params: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
        options = self._options
        files = await self._files(params)
        try:
            outputs = _Outputs(self._secrets + [ctx.api_key] * (ctx.api_key != NO_API_KEY), options.max_output_bytes)
            end = await self._execute(self._command_line(params, ctx, files), outputs)
            answer = end.stdout
            if options.answer_from == "output_file":
                answer = await self._output_file(files, outputs)
        finally:
            # In a thread that goes on to its end, also when the attempt is cancelled just now.
            await asyncio.shield(asyncio.to_thread(files.remove))
        return self._built(end, outputs, answer, ctx.rollout_id)

    async def _files(self, params: dict[str, Any]) -> CommandFiles:
        options = self._options
        preparing = asyncio.ensure_future(
            asyncio.to_thread(CommandFiles.prepare, params, options.input_format, options.working_directory)
        )
        try:
            return await asyncio.shield(preparing)
        except asyncio.CancelledError:
            preparing.add_done_callback(_remove_unused)  # the thread cannot be stopped, and nobody takes its files now
            raise
        except OSError as error:
            problem = f"agent {self._name}: the files of its command cannot be written: {error}"
            raise AgentError(AGENT_REQUEST_FAILED, problem) from error

    def _command_line(self, params: dict[str, Any], ctx: RunContext, files: CommandFiles) -> CommandLine:
        options, server = self._options, self._options.model_server.name
        words = {
            "input_file": str(files.input_file),
            "output_file": str(files.output_file),
            "rollout_id": ctx.rollout_id,
            "model": str(params.get("model") or server),
            "python": sys.executable,
            "start_directory": str(Path.cwd()),
        }
        program, *arguments = (_filled(word, words) for word in options.command)
        if "/" in program:
            program = str(Path.cwd() / program)  # it works elsewhere, but was named from here
        return CommandLine(
            arguments=(program, *arguments),
            environment={
                **{name: _filled(value, words) for name, value in options.environment.items()},
                "OPENAI_BASE_URL": ctx.base_url(server),
                "OPENAI_API_BASE": ctx.base_url(server),
                "OPENAI_API_KEY": ctx.api_key,
                "ANTHROPIC_BASE_URL": ctx.root_url(server),
                "ANTHROPIC_API_KEY": ctx.api_key,
                "ANTHROPIC_AUTH_TOKEN": ctx.api_key,
                "GYM_RAY_ROLLOUT_ID": ctx.rollout_id,
                "GYM_RAY_MODEL": words["model"],
                "GYM_RAY_INPUT_FILE": words["input_file"],
                "GYM_RAY_OUTPUT_FILE": words["output_file"],
            },
            directory=files.directory,
            private_directory=files.root,
            stdin=files.input_file,
            grace_s=options.kill_grace_s,
            mark=secrets.token_hex(16),
        )

    async def _execute(self, command: CommandLine, outputs: _Outputs) -> CommandEnd:
        timeout_s = self._options.timeout_s
        try:
            end = await run_command(command, timeout_s=timeout_s, max_output_bytes=outputs.bytes_to_keep)
        except OSError as error:
            problem = f"agent {self._name}: no process could be made for its command: {error}"
            raise AgentError(AGENT_REQUEST_FAILED, problem) from error
        what, seen = f"agent {self._name}: its command", outputs.shown(end)
        if end.survivors:
            raise AgentError(AGENT_RUN_ERROR, f"{what} left processes that nothing ends: {end.survivors}", None, seen)
        if end.timed_out:
            raise AgentTimeoutError(f"{what} did not end within {timeout_s:g} s{outputs.last_words(end)}", body=seen)
        if end.problem:
            problem = f"{what} {command.arguments[0]} {end.problem}"
            raise AgentError(AGENT_RUN_ERROR, problem, None, seen)
        if end.exit_code != 0:
            problem = f"{what} {_how(end.exit_code)}{outputs.last_words(end)}"
            raise AgentError(AGENT_RUN_ERROR, problem, None, seen)
        return end

    async def _output_file(self, files: CommandFiles, outputs: _Outputs) -> OutputTail:
        try:
            return await asyncio.to_thread(files.read_output, outputs.bytes_to_keep)
        except FileNotFoundError as error:
            problem = (
                f"agent {self._name}: its command ended well but wrote no output file; answer_from: output_file reads "
                "what it writes to {output_file}, a path that it also finds in GYM_RAY_OUTPUT_FILE"
            )
            raise AgentError(AGENT_RUN_ERROR, problem) from error
        except OSError as error:
            problem = f"agent {self._name}: its command ended well but its output file cannot be read: {error}"
            raise AgentError(AGENT_RUN_ERROR, problem) from error

    def _built(self, end: CommandEnd, outputs: _Outputs, answer: OutputTail, rollout_id: str) -> dict[str, Any]:
        text, reward = outputs.text(answer), None
        if self._resources_server is None:
            before, report = _reward_report(outputs.text(end.stdout))
            if report is not None:
                reward = checked_reward(self._name, report["reward"])
                text = before if answer is end.stdout else text
        cut = "max_output_bytes" if outputs.cut(answer) else None
        command = {
            "exit_code": end.exit_code,
            "stdout_bytes": end.stdout.total,
            "stderr_bytes": end.stderr.total,
        }
        return {"response": message_response(text, rollout_id, cut=cut), "reward": reward, "command": command}


def _remove_unused(prepared: asyncio.Future[CommandFiles]) -> None:
    if not prepared.cancelled() and prepared.exception() is None:
        prepared.result().remove()


class _Outputs:
    """Reads what a command wrote: bounded, with the secrets taken out of it."""

    def __init__(self, known_secrets: Iterable[str], max_bytes: int) -> None:
        self._secrets, self._max_bytes = list(known_secrets), max_bytes
        # A secret across the cut must still be found, so that its half is not shown.
        self.bytes_to_keep = max_bytes + max((len(secret.encode()) for secret in self._secrets), default=0)

    def cut(self, output: OutputTail) -> bool:
        return output.total > self._max_bytes

    def text(self, output: OutputTail) -> str:
        data = hide(output.kept, self._secrets)[-self._max_bytes :]
        while self.cut(output) and data[:1] and data[0] & 0xC0 == 0x80:
            data = data[1:]  # the rest of a character that was cut
        return data.decode("utf-8", "replace")

    def shown(self, end: CommandEnd) -> str:
        """Return the ends of both outputs for a failure, what went wrong first."""
        parts = []
        for name, output in (("stderr", end.stderr), ("stdout", end.stdout)):
            text = self.text(output)
            if text:
                parts.append(f"{name} ({output.total} bytes) ends:\n{text[-_SHOWN_CHARS:]}")
        return "\n".join(parts)

    def last_words(self, end: CommandEnd) -> str:
        """Return the last line that says something, for a message."""
        lines = (self.text(end.stderr).strip() or self.text(end.stdout).strip()).splitlines()
        return f": {lines[-1][-300:]}" if lines else ""


def _filled(text: str, words: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: words[match.group(1)], text)


def _how(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"exited with status {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:  # a real-time signal has no name
        return f"was killed by signal {-exit_code}"


def _reward_report(stdout: str) -> tuple[str, dict[str, Any] | None]:
    """Return the text before a last line that reports a reward, and the report; the whole text when there is none."""
    before, _, last = stdout.rstrip().rpartition("\n")
    report = exact_json.loads_object(last.encode())
    return (before, report) if report is not None and "reward" in report else (stdout, None)
