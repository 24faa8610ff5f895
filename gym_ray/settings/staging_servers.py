"""Which model servers can have inference workers that keep the tokens themselves, and what they may not be told (C241).

A worker stages the tokens of one complete Chat answer. Whatever would make it answer otherwise, or hand tokens to
clients, is refused before anything starts.
"""

from __future__ import annotations

from collections.abc import Iterator

from gym_ray.settings.model_options import LocalModelOptions, ModelOptions, OpenAIModelOptions, VllmModelOptions
from gym_ray.settings.problems import KeyPath
from gym_ray.settings.run import RunSettings
from gym_ray.settings.servers import ServerSettings

__all__ = ["staging_problems"]

Problem = tuple[KeyPath, str, str]
"""The key, what is wrong, what would be right."""

_EXTERNAL = "token_id_capture.external_staging"
_NOWHERE = "say in token_id_capture.staging.where its workers are to keep tokens"
_WORKERS = "use a vllm_model, or an openai_model with dialects [chat], whose server stages tokens"
_RESERVED = ("ng_capture", "ng_commit_coords", "required_prefix_token_ids", "offload_params")
_SHOWS_TOKENS = ("return_token_ids", "return_token_id_information")


def staging_problems(settings: RunSettings) -> list[Problem]:
    """Return why model servers cannot serve a run whose workers keep the tokens; [] when they can, or it is off."""
    if not (settings.token_id_capture.enabled and settings.token_id_capture.external_staging):
        return []
    return [*_wrong_options(settings), *_wrong_servers(settings)]


def _wrong_options(settings: RunSettings) -> Iterator[Problem]:
    for server in settings.servers_of("responses_api_models").values():
        options = server.options
        if not isinstance(options, VllmModelOptions):
            continue
        path = (server.name, server.type, server.implementation)
        if "chat" not in options.dialects:
            yield (*path, "dialects"), f"has no chat, the dialect in which a worker is asked with {_EXTERNAL}", "add it"
        for name in ("scale_out", "supply_prefix_token_ids"):
            if getattr(options, name):
                problem = f"does not go with {_EXTERNAL}: the worker continues the tokens that it staged itself"
                yield (*path, name), problem, "leave it out"
        for name, value in options.extra_body.items():
            problem = _wrong_member(name, value)
            if problem:
                yield (*path, "extra_body"), f"must not hold {name} with {_EXTERNAL}: {problem}", "leave it out"


def _wrong_member(name: str, value: object) -> str:
    if name in _RESERVED:
        return "model server and worker keep it for each other"
    if name in _SHOWS_TOKENS and value:
        return "tokens go to the storage of the worker, and to no client"
    if name == "n" and (value not in (None, 1) or value is True):
        return "a captured call has one answer"
    return ""


def _wrong_servers(settings: RunSettings) -> Iterator[Problem]:
    """Name the model servers of agents that are trained, and cannot stage."""
    for agent in settings.servers_of("responses_api_agents").values():
        if not settings.trains(agent.name):
            continue
        for field, reference in agent.options.references().items():
            server = settings.servers.get(reference.name)
            if server is None or not isinstance(server.options, ModelOptions) or _can_stage(settings, server):
                continue
            path = (agent.name, agent.type, agent.implementation, field)
            problem = f"{server.name} ({server.implementation}) has no workers that stage tokens, for {_EXTERNAL}"
            yield path, problem, _NOWHERE if isinstance(server.options, LocalModelOptions) else _WORKERS


def _can_stage(settings: RunSettings, server: ServerSettings) -> bool:
    options = server.options
    if isinstance(options, LocalModelOptions):
        return settings.token_id_capture.staging is not None
    if isinstance(options, OpenAIModelOptions):
        return options.dialects == ("chat",)
    return isinstance(options, VllmModelOptions)  # what is wrong with its dialects is said of itself
