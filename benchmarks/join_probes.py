"""The measurements of the benchmark ``join``, each in a process of its own, through the code that joiners run."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from gym_ray import exact_json
from gym_ray.evidence.build import JoinOptions, build_evidence
from gym_ray.evidence.join import Joined, join
from gym_ray.evidence.run_result import RunResult
from gym_ray.model_call_capture.call_index import RecordedCall
from gym_ray.model_call_capture.lines import CaptureSnapshot
from gym_ray.model_call_capture.quiesce import WrittenCalls
from gym_ray.model_call_capture.records import ModelCallRecord, build_record

ROLLOUT = "3-0"
ROW = {
    "_ng_task_index": 3,
    "_ng_rollout_index": 0,
    "agent_ref": {"name": "toy", "type": "responses_api_agents"},
    "responses_create_params": {"input": "q"},
}
SERVER = {"type": "responses_api_models", "name": "policy_model"}
TOOLS = [
    {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}
]
GROWTH_BYTES = 4400

_Object = dict[str, Any]


class Words:
    """Texts of a seeded vocabulary, no two of them the same."""

    def __init__(self) -> None:
        self._random = random.Random(7)
        self._words = ["".join(self._random.choices("abcdefghijklmnopqrstuvwxyz", k=n)) for n in range(2, 12)] * 30

    def text(self, size: int) -> str:
        """Return a text of about so many bytes, with a few characters that JSON escapes."""
        words = self._random.choices([*self._words, '"quoted"', "line\n"], k=size // 7 + 1)
        return " ".join(words)[:size]

    def hex_id(self) -> str:
        """Return 32 hexadecimal digits."""
        return f"{self._random.getrandbits(128):032x}"


@dataclass(frozen=True)
class Rollout:
    """One rollout to join.

    Attributes:
        exchanges: Its calls, as they stand in the capture file.
        data: Bytes of the capture file.
        reply: The agent's reply.
    """

    exchanges: list[_Object]
    data: bytes
    reply: bytes

    @cached_property
    def snapshot(self) -> CaptureSnapshot:
        """The capture as a joiner reads it."""
        return CaptureSnapshot(self.data, incomplete=False)

    @cached_property
    def written(self) -> WrittenCalls:
        """What the server says it wrote."""
        return WrittenCalls(recorded=tuple(RecordedCall(call["model_call_id"], "f", 0, 1) for call in self.exchanges))

    def join(self, options: JoinOptions) -> Joined:
        """Return the finished record."""
        return join(
            orjson.dumps(ROW), ROLLOUT, RunResult(self.reply, None, 900.0), self.snapshot, self.written, options=options
        )

    def evidence_line(self) -> bytes:
        """Parse, join, project, sum up and serialise: a join without its verdict and facts."""
        reply = exact_json.loads(self.reply)
        reply |= {name: ROW[name] for name in ("_ng_task_index", "_ng_rollout_index", "agent_ref")}
        record = build_evidence(reply, ROW, ROLLOUT, self.snapshot, self.written, 900.0, JoinOptions())
        return exact_json.dumps(record)


def rollout_of(inputs: Callable[[int, list[_Object]], list[_Object]], calls: int, words: Words) -> Rollout:
    """Make a rollout; ``inputs`` gives the items of a call's request, from its number and the call's own output."""
    exchanges, output = [], []
    for number in range(calls):
        asked = inputs(number, output)
        output = [
            {"type": "reasoning", "id": f"rs_{number}", "summary": [{"type": "summary_text", "text": words.text(400)}]},
            message("assistant", words.text(700), "output_text"),
            {"type": "function_call", "call_id": f"t{number}", "name": "look", "arguments": f'{{"q": "{number}"}}'},
        ]
        exchanges.append(exchange(number, asked, output, words))
    observed = {
        "source": "toy",
        "records": [
            {
                "kind": "agent_invocation",
                "invocation_id": "root",
                "status": "completed",
                "model_calls": [{"model_ref": SERVER, "response_id": call["response"]["id"]} for call in exchanges],
            }
        ],
    }
    reply = {"reward": 1.0, "response": exchanges[-1]["response"], "ng_agent_observations": observed}
    data = b"".join(orjson.dumps(call) + b"\n" for call in exchanges)
    return Rollout(exchanges, data, orjson.dumps(reply))


def message(role: str, text: str, kind: str) -> _Object:
    """Return a message item."""
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def exchange(number: int, asked: list[_Object], output: list[_Object], words: Words) -> _Object:
    """Return one raw exchange."""
    usage = {
        "input_tokens": 1000 + number,
        "input_tokens_details": {"cached_tokens": 5},
        "output_tokens": 10,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 1010 + number,
    }
    return {
        "model_call_id": words.hex_id(),
        "dialect": "responses",
        "model_ref": SERVER,
        "started_at": 1786032154.12 + number,
        "completed_at": 1786032154.96 + number,
        "latency_ms": 842.7,
        "latency_ttft_ms": None,
        "status_code": 200,
        "error_category": None,
        "request": {"model": "toy-1", "input": asked, "tools": TOOLS, "temperature": 0.7},
        "response": {
            "id": f"resp_{words.hex_id()}",
            "model": "toy-1-2026",
            "status": "completed",
            "output": output,
            "usage": usage,
        },
    }


def even_rollout(calls: int) -> Rollout:
    """Return a rollout of calls of 8 KB each."""
    words = Words()

    def inputs(number: int, output: list[_Object]) -> list[_Object]:
        del output
        return [message("user" if (number + i) % 2 else "assistant", words.text(630), "input_text") for i in range(8)]

    return rollout_of(inputs, calls, words)


def growing_rollout(calls: int) -> Rollout:
    """Return a rollout whose every call sends the whole history again."""
    words = Words()
    history: list[_Object] = []

    def inputs(number: int, output: list[_Object]) -> list[_Object]:
        del number
        history.extend(output)
        history.append(message("user", words.text(GROWTH_BYTES - 1500), "input_text"))
        return list(history)

    return rollout_of(inputs, calls, words)


def took_s(work: Callable[[], object]) -> float:
    """Return the processor time of one run."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def measured(rollout: Rollout, rounds: int) -> dict[str, float]:
    """Return the median times of a join and of the least that one must do, measured in turns."""
    lines = rollout.data.splitlines()
    values = [orjson.loads(line) for line in lines]
    records = [build_record(value, place).as_json() for place, value in enumerate(values)]
    for record in records:  # the model takes no numbers as times
        record["started_at"] = record["completed_at"] = None
    works: Mapping[str, Callable[[], object]] = {
        "loads_s": lambda: [orjson.loads(line) for line in lines],
        "dumps_s": lambda: [orjson.dumps(value) for value in values],
        "validate_s": lambda: [ModelCallRecord.model_validate(record) for record in records],
        "join_s": rollout.evidence_line,
        "whole_s": lambda: rollout.join(JoinOptions()),
    }
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            found[name].append(took_s(work))
    figures = {name: statistics.median(times) for name, times in found.items()}
    return {
        **figures,
        "least_s": figures["loads_s"] + figures["dumps_s"] + figures["validate_s"],
        "capture_bytes": len(rollout.data),
        "record_bytes": len(rollout.evidence_line()),
    }


def ten(directory: Path, size: int, count: int) -> dict[str, float]:
    """Measure a rollout of even calls."""
    del directory
    return measured(even_rollout(size), count)


def growing(directory: Path, size: int, count: int) -> dict[str, float]:
    """Measure a rollout whose history grows."""
    del directory
    return measured(growing_rollout(size), count)


def stored_bytes(directory: Path, size: int, count: int) -> dict[str, float]:
    """Return what a growing rollout takes, whole and compact, and what of it is distinct.

    Distinct is every item of a request or a response once, and the rest of each captured line and of the reply.
    """
    del directory, count
    rollout = growing_rollout(size)
    inline, compact = rollout.join(JoinOptions()), rollout.join(JoinOptions(compact=True))
    pieces: set[bytes] = set()
    for call in rollout.exchanges:
        for body, items in ((call["request"], "input"), (call["response"], "output")):
            pieces |= {orjson.dumps(item) for item in body[items]}
            pieces.add(orjson.dumps({name: value for name, value in body.items() if name != items}))
        pieces.add(orjson.dumps({name: value for name, value in call.items() if name not in ("request", "response")}))
    pieces.add(rollout.reply)
    return {
        "inline_bytes": len(inline.line),
        "compact_bytes": len(compact.line),
        "parts_bytes": len(compact.parts or b""),
        "distinct_bytes": sum(map(len, pieces)),
    }


PROBES = {"ten": ten, "growing": growing, "bytes": stored_bytes}
