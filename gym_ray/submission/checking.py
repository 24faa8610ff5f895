"""Checks a part of a document against its model, and words each mistake with its file, key and remedy.

No message may hold a secret: a wrong value is shown only where neither its key nor its text is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gym_ray.errors import SettingsError
from gym_ray.settings.document import Document
from gym_ray.settings.problems import PLAIN_WORDS, KeyPath, combine, did_you_mean, dotted, show

__all__ = ["checked", "checked_kind", "mistake_at"]

_Model = TypeVar("_Model", bound=BaseModel)
_ENV = "env"


def mistake_at(document: Document, path: KeyPath, problem: str, remedy: str) -> SettingsError:
    """Return an error for a key of a document; where it has neither the key nor one above it, for the document."""
    known = any(layer.place(path[:1]) for layer in document.layers)
    place = document.place(path) if known else document.layers[0].where
    return SettingsError(place, dotted(path), problem, remedy)


def checked(model: type[_Model], value: Any, path: KeyPath, document: Document) -> _Model:
    """Return a part of a document as its model.

    Raises:
        SettingsError: It has mistakes; the message has one line for each.
    """
    if not isinstance(value, Mapping):
        problem = f"{show(value, path, document.secrets)} is not a map"
        raise mistake_at(document, path, problem, "write key: value lines below it")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False)
    raise combine(_one_a_key([_worded(dict(detail), model, value, path, document) for detail in details]))


def checked_kind(models: Mapping[str, type[_Model]], value: Any, path: KeyPath, document: Document) -> _Model:
    """Return a part of a document as the model that its ``type`` names.

    Raises:
        SettingsError: It has no such type, or mistakes.
    """
    if not isinstance(value, Mapping):
        return checked(next(iter(models.values())), value, path, document)
    kind = value.get("type")
    if kind is None:
        raise mistake_at(document, (*path, "type"), "required, but not set", f"one of {', '.join(models)}")
    if not isinstance(kind, str) or kind not in models:
        problem = f"{show(kind, path, document.secrets)} is not known"
        raise mistake_at(document, (*path, "type"), problem, did_you_mean(str(kind), models))
    return checked(models[kind], value, path, document)


def _one_a_key(mistakes: Sequence[SettingsError]) -> list[SettingsError]:
    """Return one mistake for each key; a field of several types has one for each of them."""
    found: dict[str, SettingsError] = {}
    for mistake in mistakes:
        first = found.get(mistake.key)
        if first is None:
            found[mistake.key] = mistake
        elif mistake.remedy not in first.remedy:
            remedy = f"{first.remedy}, or {mistake.remedy}"
            found[mistake.key] = SettingsError(first.where, first.key, first.problem, remedy)
    return list(found.values())


def _worded(
    detail: dict[str, Any], model: type[BaseModel], value: Any, path: KeyPath, document: Document
) -> SettingsError:
    kind = detail["type"]
    where: KeyPath = (*path, *_keys(detail["loc"], value, missing=kind == "missing"))
    if kind == "extra_forbidden":
        known = _fields(model, detail["loc"][:-1])
        return mistake_at(document, where, "unknown key", did_you_mean(str(where[-1]), known))
    if kind == "missing":
        return mistake_at(document, where, "required, but not set", f"give a value: ++{dotted(where)}=…")
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    hidden = _ENV in where[:-1]  # any variable may be a credential, whatever its name
    shown = "the value (not shown)" if hidden else show(detail["input"], where, document.secrets)
    return mistake_at(document, where, f"{shown} is not accepted", PLAIN_WORDS.get(kind, message))


def _keys(location: Sequence[str | int], value: Any, *, missing: bool) -> KeyPath:
    """Leave out what pydantic puts between keys for a field of several types: the name of the type that it tried."""
    kept: list[str | int] = []
    for position, part in enumerate(location):
        is_key = part in value if isinstance(value, Mapping) else isinstance(value, list) and isinstance(part, int)
        if is_key:
            value = value[part]
            kept.append(part)
        elif missing and position == len(location) - 1:
            kept.append(part)
    return tuple(kept)


def _fields(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Return the known keys of the block at ``path`` below a model; names between are those of a map."""
    for part in path:
        if part in model.model_fields:
            inner = _models_in(model.model_fields[str(part)].annotation)
            model = inner[0] if inner else model
    return list(model.model_fields)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for option in getattr(annotation, "__args__", ()) for found in _models_in(option)]
