"""Writes the aggregate metrics file: one entry an agent, its own answer or the defaults, as a stream (D112-D114)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from gym_ray import exact_json
from gym_ray.errors import StorageError
from gym_ray.evidence.scores.numbers import finite
from gym_ray.rollouts.metrics.outcome_table import OutcomeTable
from gym_ray.rollouts.metrics.reply_metrics import ReplyMetrics
from gym_ray.rollouts.metrics.scoring import AggregationOptions, scored_reply
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.replacing import replacing

__all__ = ["PostMetrics", "write_agent_entries"]

PostMetrics = Callable[[str, Iterator[bytes]], bytes | None]
"""Sends the body of ``POST /aggregate_metrics`` to an agent, in chunks, and returns its answer.

None says that this agent does not aggregate: it is no HTTP agent, or it has no such route. Whatever it raises is
reported, and the defaults stand.
"""

_CHUNK_BYTES = 1 << 18
_WHOLE = ("agent_metrics", "key_metrics", "group_level_metrics")


def write_agent_entries(
    path: Path, table: OutcomeTable, options: AggregationOptions, post: PostMetrics | None
) -> list[str]:
    """Replace ``path`` by an array with one entry for each agent that has replies, by name; return warnings.

    Memory holds one task and 8 bytes for each number of each reply of one agent.

    Raises:
        StorageError: The file cannot be written; the old one is intact.
    """
    warnings: list[str] = []
    with _replaced(path) as out:
        out.write(b"[")
        scored = (agent for agent in table.agents() if _has_replies(agent, table, options))
        for number, agent in enumerate(scored):
            out.write(b",\n" if number else b"\n")
            _write_entry(out, agent, table, options, _answer(agent, table, options, post, warnings))
        out.write(b"\n]\n")
    return warnings


def _has_replies(agent: str, table: OutcomeTable, options: AggregationOptions) -> bool:
    replies = (scored_reply(task.task, one, options) for task in table.tasks(agent) for one in task.rollouts)
    return any(reply is not None for reply in replies)


@contextmanager
def _replaced(path: Path) -> Iterator[BinaryIO]:
    try:
        with replacing(FileCalls(), [path]) as out:
            yield out
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{path}: the metrics cannot be written: {error}") from error


def _write_entry(
    out: BinaryIO, agent: str, table: OutcomeTable, options: AggregationOptions, answer: dict[str, Any]
) -> None:
    out.write(b'{"agent_ref":' + exact_json.dumps({"name": agent}))
    if not all(name in answer for name in _WHOLE):
        answer = _write_defaults(out, agent, table, options, answer)
    for name, value in answer.items():
        if name != "agent_ref":
            out.write(b",\n" + exact_json.dumps(name) + b":" + exact_json.dumps(value))
    out.write(b"}")


def _write_defaults(
    out: BinaryIO, agent: str, table: OutcomeTable, options: AggregationOptions, answer: dict[str, Any]
) -> dict[str, Any]:
    """Write the entries of the tasks, and return the other members: what the agent answered goes over the defaults."""
    metrics = ReplyMetrics()
    groups: Iterator[Any] = (group for group in _groups(metrics, agent, table, options) if group is not None)
    own_groups = answer.pop("group_level_metrics", None)
    out.write(b',\n"group_level_metrics":[')
    if own_groups is not None:
        for _ in groups:  # the statistics need every task all the same
            pass
        groups = iter(own_groups if isinstance(own_groups, list) else [])
    for number, group in enumerate(groups):
        out.write((b",\n" if number else b"\n") + exact_json.dumps(group))
    out.write(b"]")
    found = metrics.result()
    own = answer.pop("agent_metrics", None)
    if isinstance(own, dict):
        found["agent_metrics"] |= own
        # What an agent computes itself is what it wants to be known by; lists and objects are no key metrics.
        found["key_metrics"] |= {name: value for name, value in own.items() if finite(value) is not None}
    keys = answer.pop("key_metrics", None)
    if isinstance(keys, dict):
        # It chose them itself; what of the run was not measured must stand beside them all the same.
        coverage = {name: value for name, value in found["key_metrics"].items() if name.startswith("coverage/")}
        found["key_metrics"] = coverage | keys
    return found | answer


def _groups(
    metrics: ReplyMetrics, agent: str, table: OutcomeTable, options: AggregationOptions
) -> Iterator[dict[str, Any] | None]:
    for task in table.tasks(agent):
        replies = [scored_reply(task.task, rollout, options) for rollout in task.rollouts]
        scored = [reply for reply in replies if reply is not None]
        yield metrics.add_task(task.task, scored, missing=len(replies) - len(scored))


def _answer(
    agent: str, table: OutcomeTable, options: AggregationOptions, post: PostMetrics | None, warnings: list[str]
) -> dict[str, Any]:
    if post is None:
        return {}
    try:
        answer = post(agent, _body(agent, table, options))
    except Exception as error:  # noqa: BLE001 - the boundary to an agent: its failure must not cost the run its metrics
        warnings.append(f"agent {agent!r}: its /aggregate_metrics failed; default metrics stand: {error}")
        return {}
    if answer is None:
        return {}
    value = exact_json.loads_object(answer)
    if value is None:
        warnings.append(f"agent {agent!r}: /aggregate_metrics answered no JSON object; default metrics stand")
        return {}
    return value


def _body(agent: str, table: OutcomeTable, options: AggregationOptions) -> Iterator[bytes]:
    """Yield the request's body in chunks: reduced replies, sorted by task and repeat, masked ones included (D113)."""
    waiting, size, first = [b'{"verify_responses":['], 0, True
    for task in table.tasks(agent):
        for rollout in task.rollouts:
            reply = scored_reply(task.task, rollout, options)
            if reply is None:
                continue
            waiting.append((b"" if first else b",") + exact_json.dumps(reply))
            size, first = size + len(waiting[-1]), False
            if size >= _CHUNK_BYTES:
                yield b"".join(waiting)
                waiting, size = [], 0
    yield b"".join([*waiting, b"]}"])
