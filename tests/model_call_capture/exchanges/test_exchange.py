from __future__ import annotations

import json
from typing import Any

import pytest

from gym_ray import exact_json
from gym_ray.model_call_capture.exchanges.exchange import (
    Exchange,
    PublishedUsage,
    encode_exchange,
    publish_request,
    take_published_request,
)
from gym_ray.model_call_capture.lines import parse_lines

DEPTHS = [*range(245, 262), 300, 480, 500, 600, 990, 1019, 1020, 1021, 1022, 1023, 1024, 1025, 3000, 20_000, 200_000]


def nested(levels: int, leaf: bytes = b"") -> bytes:
    """An object that nests ``levels`` deep."""
    return b'{"a":' + b"[" * (levels - 1) + leaf + b"]" * (levels - 1) + b"}"


def exchange_of(request: bytes, response: bytes, *, is_sse: bool = False) -> Exchange:
    exchange = Exchange("0" * 32, "0-0", "chat", "s", 1.0, status=200, is_sse=is_sse, complete=True)
    exchange.request, exchange.response = [request], [response]
    if is_sse:
        exchange.terminal = "complete"
    return exchange


@pytest.mark.parametrize("leaf", [b"", b"%d" % 2**70])
@pytest.mark.parametrize("levels", DEPTHS)
def test_a_body_of_any_depth_is_kept(levels: int, leaf: bytes) -> None:
    body = nested(levels, leaf)
    line = encode_exchange(exchange_of(body, b'{"choices":[{"index":0}]}'))
    (((_, record),), invalid) = parse_lines(line)
    assert invalid == 0
    assert ("request_raw" in record) == (levels > 253)
    kept = record.get("request_raw") or exact_json.dumps(record["request"]).decode()
    assert kept == body.decode()
    assert record["error_category"] is None
    record_of_records = b'{"a":{"b":[%s]}}' % line.rstrip()  # as it stands in a rollout record
    assert exact_json.dumps(exact_json.loads(record_of_records)) == record_of_records


@pytest.mark.parametrize("levels", DEPTHS)
@pytest.mark.parametrize("is_sse", [False, True])
def test_an_answer_of_any_depth_is_kept(levels: int, is_sse: bool) -> None:
    body = nested(levels)
    if is_sse:
        chunk = b'{"id":"c","choices":[{"index":0,"delta":{"content":"x","extra":%s}}]}' % body
        body = b"data: " + chunk + b"\n\ndata: [DONE]\n\n"
    line = encode_exchange(exchange_of(b"{}", body, is_sse=is_sse))
    (((_, record),), invalid) = parse_lines(line)
    assert invalid == 0
    assert record["request"] == {}
    kept = record.get("response_raw") or json.dumps(record["response"], separators=(",", ":"))
    assert kept == body.decode()


def test_what_is_too_deep_is_no_answer() -> None:
    line = encode_exchange(exchange_of(b"{}", b'{"choices":[{"index":0}],"x":%s}' % nested(300)))
    (((_, record),), _) = parse_lines(line)
    assert record["response"] is None
    assert record["error_category"] == "capture_parse_error"


def test_usage_too_deep_for_readers_is_left_out_and_not_called_unknown() -> None:
    exchange = exchange_of(b"{}", b'{"choices":[{"index":0}]}')
    exchange.usage = PublishedUsage(json.loads(nested(300)))
    (((_, record),), _) = parse_lines(encode_exchange(exchange))
    assert "usage" not in record
    assert record["response"] == {"choices": [{"index": 0}]}


@pytest.mark.parametrize("request_body", [b'{"cut', b""])
def test_what_was_read_of_a_request_that_is_too_large_is_not_kept(request_body: bytes) -> None:
    exchange = exchange_of(request_body, b'{"error":{}}')
    exchange.status = 413
    (((_, record),), _) = parse_lines(encode_exchange(exchange))
    assert record["request"] is None
    assert "request_raw" not in record
    assert (record["error_category"], record["response"]) == ("client_error", {"error": {}})


def test_a_whole_request_that_the_engine_finds_too_large_is_kept() -> None:
    exchange = exchange_of(b'{"a":1}', b'{"error":{}}')
    exchange.status = 413
    (((_, record),), _) = parse_lines(encode_exchange(exchange))
    assert record["request"] == {"a": 1}


def test_a_parsed_request_is_taken_as_it_is_and_any_other_is_parsed() -> None:
    exchange = exchange_of(b'{"a":1}', b'{"choices":[{"index":0}]}')
    exchange.parsed_request = {"a": 1}
    shared = encode_exchange(exchange)
    exchange.parsed_request = None
    assert encode_exchange(exchange) == shared
    assert take_published_request({}) is None
    scope: dict[str, Any] = {}
    publish_request(scope, {"a": 2})
    assert take_published_request(scope["state"]) == {"a": 2}


@pytest.mark.parametrize("levels", [3, 400])
def test_a_large_stream_becomes_the_same_line_as_a_small_one(levels: int) -> None:
    """Its bytes are let go of early, and taken from the record where it nests too deeply to be written at once."""
    inner = nested(levels).decode()
    text = "x\ufffd" * 700_000
    for size in (10, len(text)):
        event = f'{{"id":"c","choices":[{{"index":0,"delta":{{"content":"{text[:size]}","extra":{inner}}}}}]}}'
        stream = f"data: {event}\n\ndata: [DONE]\n\n".encode().replace("\ufffd".encode(), b"\xff", 1)
        exchange = exchange_of(b"{}", stream, is_sse=True)
        record = json.loads(encode_exchange(exchange))
        assert record["response_raw"] == stream.decode("utf-8", "replace")
        if levels == 400:
            assert record["response"] is None
        else:
            assert record["response"]["choices"][0]["message"]["content"] == text[:size]
        assert bool(exchange.response) == (size == 10 or levels == 400)
