"""Options of the agents: what runs a row."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from gym_ray.settings.fields import HttpUrl, Name, Number, PositiveCount, PositiveSeconds
from gym_ray.settings.server_options import ModelServerRef, ResourcesServerRef, ServerOptions

__all__ = [
    "COMMAND_VARIABLES",
    "AgentOptions",
    "CallableAgentOptions",
    "CommandAgentOptions",
    "HttpAgentOptions",
    "SimpleAgentOptions",
]

COMMAND_VARIABLES = (
    "OPENAI_BASE_URL",
    "OPENAI_API_BASE",
    "OPENAI_API_KEY",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "GYM_RAY_ROLLOUT_ID",
    "GYM_RAY_MODEL",
    "GYM_RAY_INPUT_FILE",
    "GYM_RAY_OUTPUT_FILE",
    "GYM_RAY_COMMAND_ID",
)
"""Environment variables that every command gets; settings cannot change them, or calls would go past the capture."""

_LONGEST_GRACE_S = 10.0
"""What cancelling an attempt may take is bounded further up; a command must fit into that."""


class AgentOptions(ServerOptions):
    """Options of every agent.

    Attributes:
        token_id_capture: Its model calls are for training, where the run has that switched on (A28, B129).
    """

    token_id_capture: bool = False


class SimpleAgentOptions(AgentOptions):
    """``simple_agent``: a Responses loop that runs the environment's tools (D140 to D145).

    Attributes:
        max_steps: Model calls at most; None has no bound.
        skip_verification: Do not ask the resources server for a reward.
    """

    resources_server: ResourcesServerRef
    model_server: ModelServerRef
    max_steps: PositiveCount | None = None
    skip_verification: bool = False


class HttpAgentOptions(AgentOptions):
    """``http_agent``: an agent that serves ``POST /run``. It gets the run's token with each of them, in a header.

    Attributes:
        base_url: The agent's root URL.
    """

    base_url: HttpUrl


def _callable_path(value: str) -> str:
    module, _, function = value.rpartition(":")
    if not module or not function.isidentifier():
        raise ValueError("should be module:function or path/to/file.py:function")
    return value


class CallableAgentOptions(AgentOptions):
    """``callable_agent``: an async Python function.

    Attributes:
        callable: ``module:function`` or ``path/to/file.py:function``.
        resources_server: What scores its rollouts; None lets the function return the reward itself.
    """

    callable: Annotated[str, AfterValidator(_callable_path)]
    resources_server: ResourcesServerRef | None = None


def _words(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return shlex.split(value)
    except ValueError as error:
        raise ValueError(f"should be a command line: {error}") from None


def _command(words: tuple[str, ...]) -> tuple[str, ...]:
    if not words or not words[0] or any("\0" in word for word in words):
        raise ValueError("should name a program, and hold no zero byte")
    return words


def _variables(value: Mapping[str, str]) -> Mapping[str, str]:
    for name, text in value.items():
        if not name or "=" in name or "\0" in name + text:
            raise ValueError("should map names of environment variables to texts without zero bytes")
        if name in COMMAND_VARIABLES:
            raise ValueError(f"should leave {name} to gym-ray, which sets it for each rollout")
    return value


def _absolute(value: Path) -> Path:
    if not value.is_absolute():
        raise ValueError("should be an absolute path")
    return value


class CommandAgentOptions(AgentOptions):
    """``command_agent``: any command line program, run as it is, once a rollout.

    In ``command`` and in the values of ``environment`` these words in braces are replaced: ``{input_file}``,
    ``{output_file}``, ``{rollout_id}``, ``{model}`` (what the row asks for, else the model server's name), ``{python}``
    (the interpreter that runs gym-ray) and ``{start_directory}`` (where the run was started). There is no shell.

    Attributes:
        command: The program and its arguments, as a list, or as one text that is split as a shell would. Everybody on
            the machine can read it: it is no place for secrets.
        model_server: Where the program's model calls go.
        resources_server: What scores the answer; None takes the reward that the program itself reports.
        timeout_s: Longest that the program may run; None leaves it to the attempt's own bound.
        kill_grace_s: What it gets to end after SIGTERM, before SIGKILL.
        environment: Further environment variables.
        working_directory: Where it runs; None makes a fresh directory for each rollout and removes it afterwards.
        input_format: What the input file and standard input hold: the row's ``responses_create_params`` as ``json``,
            or the ``text`` of its messages.
        answer_from: ``stdout``, or ``output_file``.
        max_output_bytes: Bytes kept of each output, from its end; the rest is counted.
    """

    command: Annotated[tuple[str, ...], BeforeValidator(_words), AfterValidator(_command)]
    model_server: ModelServerRef
    resources_server: ResourcesServerRef | None = None
    timeout_s: PositiveSeconds | None = None
    kill_grace_s: Annotated[float, Number, Field(gt=0, le=_LONGEST_GRACE_S)] = 2.0
    environment: Annotated[dict[Name, str], AfterValidator(_variables)] = Field(default_factory=dict, repr=False)
    working_directory: Annotated[Path, AfterValidator(_absolute)] | None = None
    input_format: Literal["json", "text"] = "json"
    answer_from: Literal["stdout", "output_file"] = "stdout"
    max_output_bytes: PositiveCount = 1024**2
