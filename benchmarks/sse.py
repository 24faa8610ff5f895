"""What reading streams costs: framing, the search for the terminal event, reassembly, and memory.

Every measurement runs in fresh processes of its own; a huge event comes once in each, cold. Ratios are of processor
time, which other work on the machine disturbs least, and of the least that was measured, because other work only ever
adds; how long one feed keeps the event loop is time on the clock. Memory is what the kernel says (RSS).

    .venv/bin/python benchmarks/sse.py            the whole run, about two minutes
    .venv/bin/python benchmarks/sse.py --quick    smaller and fewer rounds, for a look
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import orjson

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES
from gym_ray.dialects.reassembly import reassemble
from gym_ray.dialects.terminal import TerminalScanner
from gym_ray.model_call_capture.exchanges.exchange import Exchange, encode_exchange
from gym_ray.model_call_capture.middleware import CaptureMiddleware
from gym_ray.model_call_capture.writer import CaptureWriter

RESULTS = Path(__file__).parent / "results"
MIB = 1 << 20
PIECE = 4096
WORDS = (
    "the",
    " quick",
    " brown",
    " fox",
    " jumps",
    ".",
    "\n",
    " def f",
    "(x):",
    " return",
    ' "q"',
    " na\u00efve",
    " 3",
)


def words(count: int) -> list[str]:
    return [WORDS[i * 7 % len(WORDS)] for i in range(count)]


def chat_stream(deltas: int) -> list[dict[str, Any]]:
    """Half text, half the arguments of a tool call, one word a chunk, as engines stream."""
    head = {
        "id": "chatcmpl-9fd2a1c5e0b94e0d",
        "object": "chat.completion.chunk",
        "created": 1790000000,
        "model": "m-70b",
    }

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return head | {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}

    function = {"name": "write", "arguments": ""}
    call = {"index": 0, "id": "call_1", "type": "function", "function": function}
    return [
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"content": word}) for word in words(deltas // 2)),
        chunk({"tool_calls": [call]}),
        *(chunk({"tool_calls": [{"index": 0, "function": {"arguments": word}}]}) for word in words(deltas // 2)),
        chunk({}, "tool_calls"),
        head
        | {"choices": [], "usage": {"prompt_tokens": 900, "completion_tokens": deltas, "total_tokens": 900 + deltas}},
    ]


def messages_stream(deltas: int) -> list[dict[str, Any]]:
    def delta(index: int, **members: str) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": index, "delta": members}

    tool = {"type": "tool_use", "id": "toolu_1", "name": "write", "input": {}}
    start: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m-70b",
        "content": [],
        "stop_reason": None,
    }
    return [
        {"type": "message_start", "message": start | {"usage": {"input_tokens": 900, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(delta(0, type="text_delta", text=word) for word in words(deltas // 2)),
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": tool},
        *(delta(1, type="input_json_delta", partial_json=word) for word in words(deltas // 2)),
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": deltas}},
        {"type": "message_stop"},
    ]


def responses_stream(deltas: int, *, cut_off: bool = False) -> list[dict[str, Any]]:
    """As engines stream it, with sequence numbers and the whole answer in the terminal event."""
    said = words(deltas // 2)
    message = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant"}
    call = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "write", "status": "in_progress"}
    text = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    content = [{"type": "output_text", "text": "".join(said), "annotations": []}]
    output = [message | {"content": content}, call | {"arguments": "".join(said), "status": "completed"}]
    envelope = {"id": "resp_1", "object": "response", "created_at": 1790000000, "model": "m-70b", "tools": []}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": envelope | {"status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": message | {"content": []}},
        *({"type": "response.output_text.delta", **text, "delta": word, "logprobs": []} for word in said),
        {"type": "response.output_item.added", "output_index": 1, "item": call | {"arguments": ""}},
        *(
            {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "output_index": 1, "delta": word}
            for word in said
        ),
        {"type": "response.completed", "response": envelope | {"status": "completed", "output": output}},
    ]
    numbered = [{"type": event["type"], "sequence_number": i} | event for i, event in enumerate(events)]
    return numbered[:-1] if cut_off else numbered


STREAMS: dict[str, tuple[str, Callable[[int], list[dict[str, Any]]]]] = {
    "chat": (CHAT, chat_stream),
    "messages": (MESSAGES, messages_stream),
    "responses": (RESPONSES, responses_stream),
    "responses_cut_off": (RESPONSES, lambda deltas: responses_stream(deltas, cut_off=True)),
}


def framed(dialect: str, payloads: list[bytes], names: list[str]) -> bytes:
    if dialect == CHAT:
        return b"".join(b"data: %s\n\n" % payload for payload in payloads) + b"data: [DONE]\n\n"
    pairs = zip(names, payloads, strict=True)
    return b"".join(b"event: %s\ndata: %s\n\n" % (name.encode(), payload) for name, payload in pairs)


def huge_event(shape: str, size: int) -> tuple[str, bytes]:
    """A stream with one event of about ``size`` bytes."""
    if shape == "text":
        return CHAT, b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\ndata: [DONE]\n\n' % (b"a" * size)
    if shape == "text_about_errors":
        body = b"an error " * (size // 9)
        return CHAT, b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\ndata: [DONE]\n\n' % body
    item = json.dumps(
        {"id": "m", "type": "message", "content": [{"type": "output_text", "text": "hello", "annotations": []}]}
    )
    items = ",".join([item] * (size // len(item))).encode()
    return RESPONSES, b'data: {"type":"response.completed","response":{"id":"r","output":[%s]}}\n\n' % items


def exchange_of(dialect: str, chunks: list[bytes], terminal: str | None) -> Exchange:
    return Exchange("0" * 32, "0-0", dialect, "s", 1.0, status=200, is_sse=True, terminal=terminal, response=chunks)


def text_of(answer: dict[str, Any]) -> Any:
    if "choices" in answer:
        return answer["choices"][0]["message"]["content"]
    block = answer["content"][0] if "content" in answer else answer["output"][0]["content"][0]
    return block["text"]


# What a process of its own measures; it prints one line of JSON.


def probe_huge(shape: str, size: int, rounds: int) -> dict[str, float]:
    """Scan one huge event in pieces of 4 KiB and make its record; seconds, the least of the rounds."""
    dialect, body = huge_event(shape, size)
    chunks = [body[at : at + PIECE] for at in range(0, len(body), PIECE)]
    best = {"scan_s": 1e9, "longest_feed_s": 1e9, "record_s": 1e9}
    for _ in range(rounds):
        scanner, longest, begun = TerminalScanner(dialect), 0.0, time.thread_time()
        for chunk in chunks:
            before = time.perf_counter()
            scanner.feed(chunk)
            longest = max(longest, time.perf_counter() - before)
        scanned = time.thread_time()
        if scanner.terminal != "complete":
            raise SystemExit(f"{shape}: the terminal event was not found")
        line = encode_exchange(exchange_of(dialect, chunks, scanner.terminal))
        recorded = time.thread_time()
        if len(line) < size:
            raise SystemExit(f"{shape}: the record lacks the stream")
        del line
        found = {"scan_s": scanned - begun, "longest_feed_s": longest, "record_s": recorded - scanned}
        best = {name: min(value, found[name]) for name, value in best.items()}
    return best


def probe_reassembly(name: str, deltas: int, rounds: int) -> dict[str, float]:
    """Reassemble a stream of small deltas against orjson on its payloads, in turns; seconds, the least of rounds."""
    dialect, make = STREAMS[name]
    events = make(deltas)
    payloads = [json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode() for event in events]
    body = framed(dialect, payloads, [event.get("type", "") for event in events])
    orjson_s = reassemble_s = 1e9
    for _ in range(rounds):
        begun = time.thread_time()
        for payload in payloads:
            orjson.loads(payload)
        parsed = time.thread_time()
        answer = reassemble(dialect, body)
        done = time.thread_time()
        orjson_s, reassemble_s = min(orjson_s, parsed - begun), min(reassemble_s, done - parsed)
        if answer is None or text_of(answer) != "".join(words(deltas // 2)):
            raise SystemExit(f"{name}: the answer lacks the text of the stream")
    return {"events": len(events), "bytes": len(body), "orjson_s": orjson_s, "reassemble_s": reassemble_s}


def memory_mib(field: str) -> float:
    """What the kernel says of this process: ``VmRSS`` is resident now, ``VmHWM`` was at most."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def pieces_of(shape: str, total: int, piece: int) -> Iterator[bytes]:
    """A chat stream of about ``total`` bytes without its end, in pieces; each piece is an object of its own."""
    text = "\U0001f600\u4f60\u597d " * 3 if shape == "emoji" else "hello world, "
    head = b'data: {"id":"chatcmpl-1","model":"m-70b","choices":[{"index":0,"delta":{"content":"'
    event = head + text.encode() + b'"},"finish_reason":null}]}\n\n'
    if shape == "one_event":
        yield head
        for _ in range(total // piece):
            yield bytes(b"a" * piece)
        yield b'"}}]}\n\n'
        return
    many = event * (2 * piece // len(event) + 2)
    for at in range(0, total, piece):
        yield many[at % len(event) :][:piece]


async def probe_memory(shape: str, total: int, piece: int) -> dict[str, float]:
    """Stream ``total`` bytes through the capture layer; memory while the stream is open, and the most until its end."""
    sent = 0
    found: dict[str, float] = {}

    async def app(_scope: MutableMapping[str, Any], _receive: Any, send: Any) -> None:
        nonlocal sent
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        found["base_mib"] = memory_mib("VmRSS")
        for chunk in pieces_of(shape, total, piece):
            sent += len(chunk)
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        found["open_mib"] = memory_mib("VmRSS")
        await send({"type": "http.response.body", "body": b"\n\ndata: [DONE]\n\n", "more_body": False})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        pass

    with tempfile.TemporaryDirectory(dir=RESULTS) as directory:
        writer = CaptureWriter(Path(directory), server_name="bench", capture_timeout_s=300)
        writer.start()
        scope = {"type": "http", "path": "/ng-rollout/0-0/v1/chat/completions", "headers": []}
        await CaptureMiddleware(app, writer)(scope, receive, send)
        if writer.counts.recorded != 1:
            raise SystemExit(f"{shape}: the stream was not recorded: {writer.counts}")
        writer.close()
    found["peak_mib"] = memory_mib("VmHWM")
    size_mib = sent / MIB
    ratios = {"open": (found["open_mib"] - found["base_mib"]) / size_mib}
    ratios["end"] = (found["peak_mib"] - found["base_mib"]) / size_mib
    return found | ratios | {"sent_mib": size_mib}


def probe(arguments: list[str]) -> dict[str, float]:
    kind, shape, *numbers = arguments
    first, second = map(int, numbers)
    if kind == "huge":
        return probe_huge(shape, first, second)
    if kind == "reassembly":
        return probe_reassembly(shape, first, second)
    return asyncio.run(probe_memory(shape, first, second))


# The run.


def fresh(*arguments: object) -> dict[str, float]:
    """Measure in a new process."""
    command = [sys.executable, __file__, "--probe", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"measuring {arguments} failed; its own message is above")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def shown(values: list[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


HUGE = ("text", "text_about_errors", "many_objects")
MEMORY = (("deltas", 4096), ("deltas", 65536), ("one_event", 4096), ("emoji", 65536))


def measure_huge(shape: str, processes: int, scale: int) -> dict[str, float]:
    """Small ones, then large ones; the least of each."""
    small = [fresh("huge", shape, 4 * scale, 1) for _ in range(processes)]
    large = [fresh("huge", shape, 16 * scale, 1) for _ in range(processes)]

    def least(rounds: list[dict[str, float]], name: str) -> float:
        return min(found[name] for found in rounds)

    of_4 = least(small, "scan_s") + least(small, "record_s")
    of_16 = least(large, "scan_s") + least(large, "record_s")
    longest = [found["longest_feed_s"] * 1000 for found in large]
    print(f"{shape}: ratio {of_16 / of_4:.2f}; longest feed, every process: {shown(longest)} ms")
    for size, rounds in (("16 MiB", large), (" 4 MiB", small)):
        scan_ms, record_ms = least(rounds, "scan_s") * 1000, least(rounds, "record_s") * 1000
        print(f"    {size}: scan {scan_ms:.1f} ms, record {record_ms:.1f} ms")
    return {"ratio": of_16 / of_4, "longest_feed_ms": min(longest), "scan_ms": least(large, "scan_s") * 1000}


def measure_reassembly(name: str, processes: int, deltas: int, rounds: int) -> float:
    found = [fresh("reassembly", name, deltas, rounds) for _ in range(processes)]
    ratios = [one["reassemble_s"] / one["orjson_s"] for one in found]
    best = min(found, key=lambda one: one["orjson_s"])
    events = best["events"]
    orjson_us, reassemble_us = best["orjson_s"] / events * 1e6, best["reassemble_s"] / events * 1e6
    print(f"{name}: {events:.0f} events of {best['bytes'] / events:.0f} bytes; ratio, every process: {shown(ratios)}")
    print(f"    one event: orjson {orjson_us:.2f} us, reassembly {reassemble_us:.2f} us")
    return statistics.median(ratios)


def measure_memory(shape: str, piece: int, total: int) -> dict[str, float]:
    found = fresh("memory", shape, total, piece)
    print(
        f"{shape:<10} {found['sent_mib']:.0f} MiB in pieces of {piece}: base {found['base_mib']:.0f} MiB, "
        f"open {found['open_mib']:.0f} (x {found['open']:.2f}), most {found['peak_mib']:.0f} (x {found['end']:.2f})"
    )
    return found


def run(*, quick: bool) -> dict[str, float]:
    processes, scale, total = (1, MIB // 4, 16 * MIB) if quick else (5, MIB, 256 * MIB)
    figures: dict[str, float] = {}
    for shape in HUGE:
        found = measure_huge(shape, 2 * processes - 1, scale)
        suffix = "" if shape == "text" else f"_{shape}"
        figures[f"sse_16_over_4{suffix}"] = found["ratio"]
        figures[f"longest_feed_ms{suffix}"] = found["longest_feed_ms"]
        figures[f"scan_ms{suffix}"] = found["scan_ms"]
    for name in STREAMS:
        deltas, rounds = (1000, 5) if quick else (6000, 25)
        figures[f"reassembly_over_orjson_{name}"] = measure_reassembly(name, processes, deltas, rounds)
    memory = {(shape, piece): measure_memory(shape, piece, total) for shape, piece in MEMORY}
    plain = [found for (shape, _), found in memory.items() if shape != "emoji"]
    figures["open_stream_memory_ratio"] = max(found["open"] for found in plain)
    figures["end_memory_ratio"] = max(found["end"] for found in plain)
    figures["end_memory_ratio_emoji"] = memory["emoji", 65536]["end"]
    return {name: round(value, 4) for name, value in figures.items()}


WANTED = {
    "sse_16_over_4": 4.4,
    "longest_feed_ms": 50.0,
    "reassembly_over_orjson_chat": 5.0,
    "reassembly_over_orjson_messages": 5.0,
    "reassembly_over_orjson_responses": 5.0,
    "open_stream_memory_ratio": 1.25,
    "end_memory_ratio": 6.0,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller and fewer rounds, for a look")
    parser.add_argument("--probe", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    if options.probe:
        print(json.dumps(probe(options.probe)))
        return
    figures = run(quick=options.quick)
    for name, value in figures.items():
        print(f"{name}: {value:.3g}" + (f" (wanted: {WANTED[name]:g} or less)" if name in WANTED else ""))
    setup = {"quick": options.quick, "piece_bytes": PIECE, "cpus": os.cpu_count(), "load_average": os.getloadavg()}
    target = RESULTS / "sse.json"
    target.write_text(json.dumps({"name": "sse", "figures": figures, "setup": setup}, indent=2) + "\n")
    print(f"written: {target}")


if __name__ == "__main__":
    main()
