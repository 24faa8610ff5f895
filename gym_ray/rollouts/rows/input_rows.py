"""Reads the input: one JSON object a line, each with a body for the model and a route to an agent (D5, D6, D13-D17).

Every line is validated before anything of an earlier run is touched. Nothing here holds more than one line at a time.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym_ray import exact_json
from gym_ray.correlation import check_rollout_id
from gym_ray.errors import InputError, RolloutIdError
from gym_ray.rollouts.rows.prompts import PromptTemplate
from gym_ray.rollouts.rows.row_options import RowOptions

__all__ = ["InputRow", "RowOptions", "explicit_id", "read_rows"]

_LISTED = 10
_LONGEST_ID = 200  # the suffixes of repeats, attempts and capture files must fit behind it in 255 bytes
_LARGEST_ATTEMPT = 2**31 - 1  # far beyond all runs of a row, and short enough for a file's name
_DEEPEST_LEVELS = 254  # what every row may have, whoever reads it and however deep its own calls are
_ENDS_LIKE_A_RETRY = re.compile(r".*-a0*[1-9][0-9]*")


@dataclass(frozen=True, slots=True)
class InputRow:
    """One valid line of the input with its route.

    Attributes:
        line: Line number counted from 1.
        value: The row; ``agent_ref`` is resolved and the body's overrides are merged in.
        content: The row as it was read, for comparing tasks.
        agent: Agent that runs it, None when only an unresolved ``task_source`` names one.
        routed: The name that the row itself gave.
        repeats: Rollouts of this row.
    """

    line: int
    value: dict[str, Any]
    content: dict[str, Any]
    agent: str | None
    routed: str | None
    repeats: int


class _Routes:
    """Collects every route that cannot be used, so that one error names all of them (D9, D15, D17)."""

    def __init__(self, path: Path, options: RowOptions) -> None:
        self._path, self._options = path, options
        self._lines: dict[str, list[int]] = {}
        self._fields: dict[str, str] = {}

    def refuse(self, line: int, field_name: str, problem: str) -> None:
        self._fields.setdefault(problem, field_name)
        lines = self._lines.setdefault(problem, [])
        if len(lines) <= _LISTED:
            lines.append(line)

    def unknown(self, line: int, field_name: str, what: str, name: str, known: Collection[str]) -> None:
        close = difflib.get_close_matches(name, list(known), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are: {', '.join(sorted(known)) or 'none'}"
        self.refuse(line, field_name, f"no {what} {name!r} runs here; {hint}")

    def unresolved(self, line: int, source: str) -> None:
        candidates = self._options.undecided_sources.get(source)
        if candidates is None:
            self.unknown(line, "task_source", "data source", source, self._options.task_sources)
            return
        agents = ", ".join(sorted(candidates))
        self.refuse(
            line, "task_source", f"{source!r} names no one agent but {agents}; give agent_ref.name or agent_map"
        )

    def raise_if_any(self) -> None:
        if not self._lines:
            return
        problems = [f"{problem}{_also(lines)}" for problem, lines in self._lines.items()]
        first = next(iter(self._lines))
        raise InputError(self._path, self._lines[first][0], self._fields[first], "; ".join(problems))


def _also(lines: list[int]) -> str:
    if len(lines) == 1:
        return ""
    shown = ", ".join(str(line) for line in lines[:_LISTED])
    return f" (lines {shown}{', …' if len(lines) > _LISTED else ''})"


def read_rows(path: Path, options: RowOptions, *, warnings: set[str] | None = None) -> Iterator[InputRow]:
    """Yield the valid rows of ``path`` in order; blank lines are skipped (D5).

    Problems of routes are gathered: the rows after the first such problem are still checked but no longer yielded,
    and one error at the end lists all of them.

    Args:
        path: The input file.
        options: Routing, limit and overrides.
        warnings: Gets one sentence for each thing that is legal but surprising.

    Raises:
        InputError: The file is missing or empty, a line is broken, or a row cannot be used.
    """
    routes, found = _Routes(path, options), 0
    objects = _objects(path)
    if options.limit:
        objects = itertools.islice(objects, options.limit)
    for line, content in objects:
        found += 1
        if options.prompt is None:
            _check_body(path, line, content)
            body = content["responses_create_params"]
        else:
            body = _built_body(path, line, content, options.prompt)
        _check_identity(path, line, content)
        row = _routed(line, content, body, options, routes, warnings)
        if row is not None:
            yield from _fanned_out(row, options, routes)
    if not found:
        raise InputError(path, 0, "", "the input has no rows; give one JSON object a line")
    routes.raise_if_any()


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise InputError(path, 0, "", f"cannot read the input: {error.strerror or error}") from error
    with file:
        for line, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                value = exact_json.loads(text)
            except ValueError as error:
                raise InputError(path, line, "", f"not JSON: {error}") from error
            if not isinstance(value, dict):
                raise InputError(path, line, "", f"a row is a JSON object, this is {_kind(value)}")
            _check_depth(path, line, text, value)
            yield line, value


def _check_depth(path: Path, line: int, text: bytes, row: dict[str, Any]) -> None:
    """Refuse what can be read and not written again."""
    if text.count(b"[") + text.count(b"{") <= _DEEPEST_LEVELS:
        return
    try:
        exact_json.dumps(row, deepest_levels=_DEEPEST_LEVELS)
    except ValueError as error:
        raise InputError(path, line, "", str(error)) from error


def _kind(value: object) -> str:
    return {list: "an array", str: "a text", bool: "a boolean", type(None): "null"}.get(type(value), "a number")


def _check_body(path: Path, line: int, row: Mapping[str, Any]) -> None:
    body = row.get("responses_create_params")
    if not isinstance(body, dict):
        problem = "missing; give an object with 'input'" if body is None else f"must be an object, is {_kind(body)}"
        raise InputError(path, line, "responses_create_params", problem)
    if not isinstance(body.get("input"), str | list):
        raise InputError(path, line, "responses_create_params.input", "missing; give a text or a list of input items")


def _built_body(path: Path, line: int, row: Mapping[str, Any], prompt: PromptTemplate) -> dict[str, Any]:
    """Return the body with the input that the template makes of the row (D12)."""
    body = row.get("responses_create_params")
    if not isinstance(body, dict | None):
        raise InputError(path, line, "responses_create_params", f"must be an object, is {_kind(body)}")
    if body is not None and body.get("input") is not None:
        problem = "the row has an input of its own, and prompt_config builds one; drop one of the two"
        raise InputError(path, line, "responses_create_params.input", problem)
    try:
        return {**(body or {}), "input": prompt.items(row)}
    except KeyError as error:
        raise InputError(path, line, str(error.args[0]), "missing; prompt_config has a placeholder for it") from error


def _check_identity(path: Path, line: int, row: Mapping[str, Any]) -> None:
    task = row.get("_ng_task_index")
    if isinstance(task, dict | list):
        raise InputError(path, line, "_ng_task_index", f"must be a number or a text, is {_kind(task)}")
    try:
        if task is not None:
            check_rollout_id(f"{task}-0", "_ng_task_index")
        explicit = explicit_id(row)
    except RolloutIdError as error:
        name, _, problem = str(error).partition(": ")
        raise InputError(path, line, name, problem) from error
    for name, value in (("_ng_task_index", task), ("_ng_rollout_id", explicit)):
        if len(str(value)) > _LONGEST_ID:
            raise InputError(path, line, name, f"is longer than {_LONGEST_ID} characters and could not name a file")
    if explicit is not None and _ENDS_LIKE_A_RETRY.fullmatch(explicit):
        raise InputError(path, line, "_ng_rollout_id", f"{explicit!r} ends like a retry of another id; rename it")
    attempt = row.get("_ng_attempt_index")
    if attempt is not None and not (isinstance(attempt, int) and 0 <= attempt <= _LARGEST_ATTEMPT):
        problem = f"{attempt!r} is not a whole number from 0 to {_LARGEST_ATTEMPT}"
        raise InputError(path, line, "_ng_attempt_index", problem)


def explicit_id(row: Mapping[str, Any]) -> str | None:
    """Return the id that the caller gave a row, None when it is derived from indices.

    Raises:
        RolloutIdError: It cannot be a rollout id.
    """
    given = row.get("_ng_rollout_id")  # and no other name: this one alone is what an id is derived from (D20, D21)
    return None if given is None else check_rollout_id(given, "_ng_rollout_id")


def _routed(
    line: int,
    content: dict[str, Any],
    body: dict[str, Any],
    options: RowOptions,
    routes: _Routes,
    warnings: set[str] | None,
) -> InputRow | None:
    ref, source = content.get("agent_ref"), content.get("task_source")
    named = ref.get("name") if isinstance(ref, dict) else None
    if ref is not None and not (isinstance(named, str) and named):
        routes.refuse(line, "agent_ref.name", "missing; name the agent that runs the row")
        return None
    if source is not None and not isinstance(source, str):
        routes.refuse(line, "task_source", f"must be a text, is {_kind(source)}")
        return None
    mapped = _mapped(named, source, options)
    if mapped is not None and named not in (None, mapped) and warnings is not None:
        warnings.add(f"agent {named!r} of the data is replaced by {mapped!r}")
    value = {**content, "responses_create_params": {**body, **options.responses_create_params}}
    if options.skills_ref is not None:
        value["skills_ref"] = dict(options.skills_ref)
    if mapped is not None:
        value["agent_ref"] = {"name": mapped}
    agent = mapped or named
    if agent is None and source is not None and options.agents is not None:
        agent = options.task_sources.get(source)
        if agent is None:
            routes.unresolved(line, source)
            return None
        value["agent_ref"] = {"name": agent}
    if agent is None and source is None:
        routes.refuse(line, "agent_ref", "the row names no agent; give agent_ref.name, task_source or --agent")
        return None
    return InputRow(line, value, content, agent, named or source, 1)


def _mapped(named: str | None, source: str | None, options: RowOptions) -> str | None:
    for name in (named, source):
        if name is not None and name in options.agent_map:
            return options.agent_map[name]
    return options.agent_map.get("_default", options.agent_name)


def _fanned_out(row: InputRow, options: RowOptions, routes: _Routes) -> Iterator[InputRow]:
    copies = options.fan_out.get(row.agent or "")
    for agent in copies if copies else (row.agent,):
        value = {**row.value, "agent_ref": {"name": agent}} if copies else row.value
        if options.agents is not None and agent not in options.agents:
            routes.unknown(row.line, "agent_ref.name", "agent", str(agent), options.agents)
            continue
        repeats = options.repeats(agent, row.routed)
        if repeats is None:
            routes.refuse(row.line, "agent_ref.name", f"num_repeats names neither {agent!r} nor '_default'")
            continue
        yield InputRow(row.line, value, row.content, agent, row.routed, repeats)
