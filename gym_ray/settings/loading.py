"""From sources to checked settings, every mistake with its place (A §17, D §16)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gym_ray.errors import SettingsError
from gym_ray.settings.document import Document, compose
from gym_ray.settings.problems import PLAIN_WORDS, KeyPath, combine, did_you_mean, dotted, show
from gym_ray.settings.run import RunSettings
from gym_ray.settings.server_options import ServerRef
from gym_ray.settings.servers import IMPLEMENTATIONS, ServerSettings
from gym_ray.settings.staging_servers import staging_problems
from gym_ray.settings.token_capture import check_token_capture
from gym_ray.settings.yaml_files import parse_yaml

__all__ = ["load_settings", "settings_from_document", "settings_from_yaml"]

_Model = TypeVar("_Model", bound=BaseModel)
_SETTINGS_KEYS = frozenset(RunSettings.model_fields) - {"servers"}
_SERVER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
Elsewhere = Callable[[RunSettings], Mapping[str, ServerSettings]]
_CAPTURE_REMEDY = "set model_call_capture_dir to an absolute path or a URL, or observability_enabled to false"


def load_settings(
    config_paths: Sequence[str | Path],
    overrides: Sequence[str] = (),
    *,
    env_file: Path | None = None,
    environ: Mapping[str, str],
    elsewhere: Elsewhere | None = None,
) -> RunSettings:
    """Read, merge and check the settings of a run (D126, D127).

    Args:
        config_paths: YAML files; later ones win.
        overrides: Command-line tokens such as ``++limit=5``; they win over everything.
        env_file: File with credentials; None means ``env.yaml`` in the working directory, if it is there.
        environ: What ``${oc.env:VAR}`` reads.
        elsewhere: Returns servers that run already, which these may refer to; asked when all else is right.

    Raises:
        SettingsError: Something is wrong. The message has one line for each mistake: file and line, or
            ``command line``; key; what is wrong; what would be right.
    """
    return settings_from_document(compose(config_paths, overrides, env_file=env_file, environ=environ), elsewhere)


def settings_from_yaml(text: str, where: str) -> RunSettings:
    """Read back what ``RunSettings.to_yaml`` wrote, such as the answer of a head server.

    Args:
        text: The YAML.
        where: Where it came from, for error messages.

    Raises:
        SettingsError: The text is not such YAML.
    """
    return settings_from_document(Document.of([parse_yaml(text, where)], {}))


def settings_from_document(document: Document, elsewhere: Elsewhere | None = None) -> RunSettings:
    """Check a merged document.

    Args:
        document: The document.
        elsewhere: Returns servers that run already, which these may refer to.

    Raises:
        SettingsError: It has mistakes; all of them are listed.
    """
    mistakes: list[SettingsError] = []
    fields = {key: value for key, value in document.tree.items() if key in _SETTINGS_KEYS}
    servers: dict[str, ServerSettings] = {}
    for name, value in document.tree.items():
        if name in _SETTINGS_KEYS or name.startswith("_"):  # names with _ are scratch space for interpolation
            continue
        try:
            servers[name] = _server(name, value, document)
        except SettingsError as mistake:
            mistakes.append(mistake)
    settings: RunSettings | None = None
    try:
        settings = _validate(RunSettings, {**fields, "servers": servers}, (), document)
        mistakes += _token_capture(settings, document)
    except SettingsError as mistake:
        mistakes.append(mistake)
    if not mistakes and settings is not None:
        known = {} if elsewhere is None else elsewhere(settings)
        mistakes = _wrong_references(settings, settings.with_servers({**known, **settings.servers}), document)
    if mistakes or settings is None:
        raise combine(mistakes)
    return settings


def _token_capture(settings: RunSettings, document: Document) -> list[SettingsError]:
    """Return why tokens cannot be captured as the block says, with the place of the key."""
    block = settings.token_id_capture
    try:
        check_token_capture(block, settings.model_call_capture_dir)
    except SettingsError as found:
        place = document.place(tuple(found.key.split(".")))
        return [SettingsError(place, found.key, found.problem, found.remedy)]
    return [
        SettingsError(document.place(path), dotted(path), problem, remedy)
        for path, problem, remedy in staging_problems(settings)
    ]


def _server(name: str, value: Any, document: Document) -> ServerSettings:
    place = document.place((name,))
    if isinstance(value, dict) and not _SERVER_NAME.fullmatch(name):
        remedy = "use A-Z a-z 0-9 . _ - and begin with a letter or digit"
        raise SettingsError(place, name, "cannot be the name of a server", remedy)
    if not isinstance(value, dict):
        raise SettingsError(place, name, "unknown key", did_you_mean(name, _SETTINGS_KEYS))
    server_type, implementations = _only_entry((name,), value, document, "server type", list(IMPLEMENTATIONS))
    known = IMPLEMENTATIONS[server_type]
    path = (name, server_type)
    implementation, options = _only_entry(path, implementations, document, "implementation", list(known))
    checked = _validate(known[implementation], {} if options is None else options, (*path, implementation), document)
    return ServerSettings(name, server_type, implementation, checked)


def _only_entry(path: KeyPath, value: Any, document: Document, what: str, known: Sequence[Any]) -> tuple[Any, Any]:
    """Return the one key, which must be known, and its value."""
    example = "write <name>: {<server type>: {<implementation>: {…}}}"
    if not isinstance(value, dict) or not value:
        raise SettingsError(
            document.place(path), dotted(path), f"names no {what}", f"{example}; {did_you_mean('', known)}"
        )
    unknown = [key for key in value if key not in known]
    if unknown:
        where = (*path, unknown[0])
        hint = did_you_mean(unknown[0], known)
        if len(path) == 1 and hint.startswith("known"):
            hint = f"servers: {hint}; settings: {did_you_mean(str(path[0]), _SETTINGS_KEYS)}"
        raise SettingsError(document.place(where), dotted(where), f"unknown {what}", hint)
    if len(value) > 1:
        found = ", ".join(f"{key} ({document.place((*path, key))})" for key in value)
        problem = f"has more than one {what}: {found}"
        raise SettingsError(document.place(path), dotted(path), problem, "keep one, and give the other its own name")
    return next(iter(value.items()))


def _validate(model: type[_Model], values: Any, path: KeyPath, document: Document) -> _Model:
    if not isinstance(values, dict):
        problem = f"{show(values, path, document.secrets)} is not a map"
        raise SettingsError(document.place(path), dotted(path), problem, "write key: value lines below it")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False)
        mistakes = [_mistake(dict(detail), model, path, document) for detail in details]
    raise combine(mistakes)


def _mistake(detail: dict[str, Any], model: type[BaseModel], path: KeyPath, document: Document) -> SettingsError:
    location: KeyPath = (*path, *detail["loc"])
    kind, place = detail["type"], document.place(location)
    if kind == "extra_forbidden":
        known = _known_fields(model, detail["loc"][:-1])
        return SettingsError(place, dotted(location), "unknown key", did_you_mean(str(location[-1]), known))
    if kind == "missing":
        return SettingsError(place, dotted(location), "required, but not set", f"give a value: ++{dotted(location)}=…")
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if not detail["loc"]:  # the checks over two keys: capture is on without a usable place
        key = "observability_enabled" if "is required" in message else message.split(" ", 1)[0]
        return SettingsError(document.place((key,)), key, message.removeprefix(f"{key} "), _CAPTURE_REMEDY)
    if kind == "value_error" and _is_block(model, detail["loc"]):  # two keys of one block that do not go together
        return SettingsError(place, dotted(location), message)
    message = PLAIN_WORDS.get(kind, message)
    if kind == "tuple_type" and isinstance(detail["input"], str):
        message = "should be a list, in brackets: [one, two]"
    if kind == "string_type" and isinstance(detail["input"], int | float):
        message = "should be text; quote it: '…' in YAML, \"'…'\" on the command line"
    return SettingsError(
        place, dotted(location), f"{show(detail['input'], location, document.secrets)} is not accepted", message
    )


def _known_fields(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    for part in path:
        annotation = model.model_fields[str(part)].annotation
        options = [annotation, *getattr(annotation, "__args__", ())]
        model = next(option for option in options if isinstance(option, type) and issubclass(option, BaseModel))
    return list(model.model_fields)


def _is_block(model: type[BaseModel], path: Sequence[str | int]) -> bool:
    if len(path) != 1 or str(path[0]) not in model.model_fields:
        return False
    annotation = model.model_fields[str(path[0])].annotation
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _wrong_references(settings: RunSettings, known: RunSettings, document: Document) -> list[SettingsError]:
    mistakes = []
    for server in settings.servers.values():
        path = (server.name, server.type, server.implementation)
        for field, reference in server.options.references().items():
            mistake = _wrong_reference((*path, field), reference, known, document)
            if mistake is not None:
                mistakes.append(mistake)
    agents = known.servers_of("responses_api_agents")
    if agents and settings.agent_name is not None and settings.agent_name not in agents:
        problem = f"no agent is called {settings.agent_name!r}"
        hint = did_you_mean(settings.agent_name, agents)
        mistakes.append(SettingsError(document.place(("agent_name",)), "agent_name", problem, hint))
    return mistakes


def _wrong_reference(
    path: KeyPath, reference: ServerRef, settings: RunSettings, document: Document
) -> SettingsError | None:
    known = settings.servers_of(reference.type)
    if reference.name in known:
        return None
    place, key = document.place((*path, "name")), dotted((*path, "name"))
    other = settings.servers.get(reference.name)
    if other is not None:
        problem = f"{reference.name!r} is one of {other.type}, not of {reference.type}"
        return SettingsError(place, key, problem, did_you_mean(reference.name, known) or f"add one of {reference.type}")
    hint = did_you_mean(reference.name, known)
    if not hint:
        flag = "--model-type" if reference.type == "responses_api_models" else "--resources-server"
        hint = f"add one, for example with {flag}, or with --config and a file that defines it"
    return SettingsError(place, key, f"there is no server {reference.name!r} of type {reference.type}", hint)
