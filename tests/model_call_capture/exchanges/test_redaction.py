"""No configured secret reaches a record, in whatever spelling, and a record without one is untouched."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ray import exact_json
from gym_ray.dialects.replay import replay_frames
from gym_ray.model_call_capture.exchanges.exchange import Exchange, PublishedUsage, encode_exchange
from gym_ray.model_call_capture.exchanges.redaction import SPELLED_OUT, Redactor, secret_digest
from gym_ray.model_call_capture.quirk_flags import quirk_flags

SECRET = "sk-FAKE/123"
KEY = b"digest key"
MARK = secret_digest(SECRET, KEY)
DONE = b"data: [DONE]\n\n"


def redactor(*secrets: str, **options: Any) -> Redactor:
    return Redactor(secrets or (SECRET,), digest_key=KEY, **options)


def exchange_of(request: bytes, response: bytes = b'{"choices":[{"index":0}]}', *, is_sse: bool = False) -> Exchange:
    exchange = Exchange("0" * 32, "0-0", "chat", "s", 1.0, status=200, is_sse=is_sse, complete=True)
    exchange.request, exchange.response = [request], [response]
    exchange.terminal = "complete" if is_sse else None
    return exchange


def record_of(redactor: Redactor | None, request: bytes, *response: bytes, is_sse: bool = False) -> dict[str, Any]:
    line = encode_exchange(exchange_of(request, *response, is_sse=is_sse), redactor)
    record = json.loads(line)
    assert isinstance(record, dict)
    return record


def chunk(content: str) -> bytes:
    delta = {"index": 0, "delta": {"content": content}, "finish_reason": None}
    return b"data: " + json.dumps({"id": "c", "model": "m", "choices": [delta]}).encode() + b"\n\n"


def test_a_mark_is_sixteen_digits_of_a_keyed_digest() -> None:
    assert re.fullmatch(r"\[redacted:[0-9a-f]{16}\]", MARK)
    assert secret_digest(SECRET, KEY) == MARK
    assert len({MARK, secret_digest(SECRET, b"other"), secret_digest("sk-FAKE-124", KEY)}) == 3
    assert secret_digest(SECRET, b"k" * 65) != secret_digest(SECRET, b"k" * 64)
    assert secret_digest("\ud83d", KEY).startswith("[redacted:")


def test_a_secret_is_found_in_every_place_a_client_or_an_engine_can_write() -> None:
    body = {"messages": [{"content": f"my key is {SECRET}."}], SECRET: [1, None, True]}
    found = exchange_of(json.dumps(body).encode(), json.dumps({"error": f"Incorrect API key: {SECRET}"}).encode())
    found.client_session_id = f"session-{SECRET}"
    found.usage = PublishedUsage({"note": SECRET, "prompt_tokens": 3})
    line = encode_exchange(found, redactor())
    assert SECRET.encode() not in line
    record = json.loads(line)
    assert record["request"] == {"messages": [{"content": f"my key is {MARK}."}], MARK: [1, None, True]}
    assert record["response"] == {"error": f"Incorrect API key: {MARK}"}
    assert record["client_session_id"] == f"session-{MARK}"
    assert record["usage"] == {"note": MARK, "prompt_tokens": 3}


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_secret_of_any_characters_is_found_in_a_header(encoding: str) -> None:
    found, secret = exchange_of(b"{}"), "clé-über-42"
    found.client_session_id = f"a {secret}".encode(encoding).decode("latin-1")
    record = json.loads(encode_exchange(found, redactor(secret)))
    assert record["client_session_id"] == f"a {secret_digest(secret, KEY)}"
    assert repr(redactor(secret)).startswith("Redactor(1 secrets")


def test_a_secret_is_found_in_bodies_that_are_kept_as_text() -> None:
    record = record_of(redactor(), f'["{SECRET}", 1'.encode(), f"<html>{SECRET}</html>".encode())
    assert (record["request_raw"], record["response_raw"]) == (f'["{MARK}", 1', f"<html>{MARK}</html>")


def test_a_secret_is_found_in_a_stream_and_in_what_is_put_together_from_it() -> None:
    record = record_of(redactor(), b"{}", chunk(f"a {SECRET} b") + DONE, is_sse=True)
    assert record["response"]["choices"][0]["message"]["content"] == f"a {MARK} b"
    assert record["response_raw"] == (chunk(f"a {MARK} b") + DONE).decode()


def test_a_secret_that_a_stream_spells_out_is_found_in_what_is_put_together_from_it() -> None:
    record = record_of(redactor(), b"{}", chunk("a sk-FA") + chunk("KE/123 b") + DONE, is_sse=True)
    assert record["response"]["choices"][0]["message"]["content"] == f"a {MARK} b"
    assert record["response_raw"] == SPELLED_OUT
    assert quirk_flags(record) == ()


def spelled(dialect: str, text: str) -> bytes:
    """A stream that says ``text`` one character an event, and in one piece wherever its dialect repeats it."""
    answers: dict[str, Any] = {
        "chat": {"id": "c", "model": "m", "choices": [{"message": {"content": text}, "finish_reason": "stop"}]},
        "messages": {"id": "m", "content": [{"type": "text", "text": text}], "stop_reason": "end_turn"},
        "responses": {
            "id": "r",
            "status": "completed",
            "output": [{"id": "i", "type": "message", "content": [{"type": "output_text", "text": text}]}],
        },
    }
    frames = []
    for frame in replay_frames(dialect, answers[dialect]):
        head, _, data = frame.partition(b"data: ")
        payload = {} if data.startswith(b"[DONE]") else json.loads(data)
        place = payload if isinstance(payload.get("delta"), str) else payload.get("delta") or {}
        place = payload["choices"][0]["delta"] if payload.get("choices") else place
        name = next((key for key in ("content", "text", "delta") if place.get(key) == text), None)
        for character in text if name is not None else [None]:
            if character is not None:
                place[name] = character
            frames.append(frame if character is None else head + b"data: " + json.dumps(payload).encode() + b"\n\n")
    return b"".join(frames)


@pytest.mark.parametrize("dialect", ["chat", "messages", "responses"])
@pytest.mark.parametrize(
    ("options", "text", "hidden"),
    [
        ({}, f"it is {SECRET}.", SECRET),
        ({"patterns": ["AIza[a-z]{6}"]}, "it is AIzaabcdef.", "AIzaabcdef"),
        ({"keys": ["password"]}, '{"password": "hunter22", "x": 1}', "hunter22"),
    ],
)
def test_a_stream_that_spells_a_secret_out_keeps_the_answer_only(
    dialect: str, options: dict[str, Any], text: str, hidden: str
) -> None:
    found = exchange_of(b"{}", spelled(dialect, text), is_sse=True)
    found.dialect = dialect
    record = json.loads(encode_exchange(found, Redactor([SECRET], digest_key=KEY, **options)))
    assert record["response_raw"] == SPELLED_OUT
    assert hidden not in json.dumps(record)
    assert "[redacted:" in json.dumps(record["response"])


@pytest.mark.parametrize("dialect", ["chat", "messages", "responses"])
def test_a_stream_that_spells_no_secret_is_kept_whole(dialect: str) -> None:
    stream = spelled(dialect, f"no secret at all: {SECRET[:-1]}")
    found = exchange_of(SECRET.encode(), stream, is_sse=True)
    found.dialect = dialect
    options = {"patterns": ["AIza[a-z]{6}"], "keys": ["password"]}
    record = json.loads(encode_exchange(found, Redactor([SECRET], digest_key=KEY, **options)))
    assert record["response_raw"] == stream.decode()


@pytest.mark.parametrize(
    "spelling",
    [
        r"sk\u002dFAKE/123",
        r"sk\u002DFAKE\u002F123",
        r"sk-FAKE\/123",
        r"\u0073\u006b\u002d\u0046\u0041\u004b\u0045\u002f\u0031\u0032\u0033",
        r"sk\\u002dFAKE\\/123",
        r"sk\\\\u002dFAKE\\\\/123",
    ],
)
def test_a_secret_is_found_in_every_json_spelling(spelling: str) -> None:
    stream = f'data: {{"id":"c","choices":[{{"index":0,"delta":{{"content":"x {spelling} y"}}}}]}}\n\n'
    arguments = json.dumps({"messages": [{"arguments": f'{{"k": "{spelling}"}}'}]})
    for request in (f'{{"k": "{spelling}"}}', f'["{spelling}"]', f'{{"k": "{spelling}"', arguments):
        record = record_of(redactor(), request.encode(), stream.encode() + DONE, is_sse=True)
        text = json.dumps(record)
        assert text.count(MARK) == 3, text
        assert "FAKE" not in text
        assert "0046" not in text


def test_digits_that_are_a_secret_leave_the_record_whole() -> None:
    request = b'{"pin": 1234567, "more": 91234567.5, "not": 123456, "yes": true, "text": "1234567"}'
    found = exchange_of(request)
    found.started_at = 1234567890.5
    record = json.loads(encode_exchange(found, redactor("1234567")))
    mark = secret_digest("1234567", KEY)
    assert record["request"] == {"pin": mark, "more": f"9{mark}.5", "not": 123456, "yes": True, "text": mark}
    assert record["started_at"] == 1234567890.5


def test_the_longer_of_two_secrets_is_taken_out_first() -> None:
    record = record_of(redactor("sk-FAKE", "sk-FAKE-LONG"), b'{"a": "sk-FAKE-LONG sk-FAKE"}')
    assert record["request"]["a"] == f"{secret_digest('sk-FAKE-LONG', KEY)} {secret_digest('sk-FAKE', KEY)}"


@pytest.mark.parametrize("secret", ['quo"ted\\key', "schlüssel-1", "emoji-\U0001f511-1", 'q"\\"z', "a/b/c"])
@pytest.mark.parametrize("ensure_ascii", [False, True])
def test_secrets_of_any_characters(secret: str, ensure_ascii: bool) -> None:
    body = json.dumps({"k": f"x{secret}y", "n": json.dumps({"k": secret})}, ensure_ascii=ensure_ascii)
    marker = secret_digest(secret, KEY)
    record = record_of(redactor(secret), body.encode(), b"data: " + body.encode() + b"\n\n", is_sse=True)
    assert record["request"]["k"] == f"x{marker}y"
    assert json.loads(record["request"]["n"]) == {"k": marker}
    assert record["response_raw"].count(marker) == 2


def test_a_record_without_secrets_keeps_every_byte() -> None:
    found = exchange_of(b'{"a": "sk-FAKE/12 \\u002d \\/ ","n":18446744073709551616,"s":"\\ud83d"}', chunk("x") + DONE)
    found.is_sse = True
    plain = encode_exchange(found)
    assert encode_exchange(found, redactor()) == plain
    assert encode_exchange(found, redactor(keys=["absent"], patterns=["never there"])) == plain
    assert encode_exchange(found, Redactor((), digest_key=KEY)) == plain
    assert encode_exchange(found, Redactor(("",), digest_key=KEY)) == plain


def test_what_json_can_hardly_hold_survives_beside_a_secret() -> None:
    request = b'{"n": 18446744073709551616, "s": "\\ud83d", "x": NaN, "k": "' + SECRET.encode() + b'"}'
    line = encode_exchange(exchange_of(request), redactor())
    record = exact_json.loads(line)
    assert record["request"] == {"n": 2**64, "s": "\ud83d", "x": None, "k": MARK}


@pytest.mark.parametrize("levels", [250, 253, 254, 600, 5000])
def test_a_body_of_any_depth_is_redacted(levels: int) -> None:
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        leaf = b'{"password": "hunter-22", "k": "' + SECRET.encode() + b'"}'
        body = b'{"a":' + opening * levels + leaf + closing * levels + b"}"
        for options in ({}, {"keys": ["password"], "patterns": ["hunter-[0-9]+"]}):
            line = encode_exchange(exchange_of(body, body), redactor(**options))
            assert SECRET.encode() not in line
            assert (b"hunter" in line) == (not options)
            json.loads(line)


def test_only_what_was_asked_for_is_looked_into() -> None:
    request = b'{"api_key": "other-key-1", "password": "hunter-22"}'
    assert record_of(redactor(), request)["request"] == json.loads(request)


def test_values_under_chosen_keys_are_replaced_at_any_depth_and_in_any_case() -> None:
    request = {
        "API_Key": "other-key-1",
        "deep": [{"password": 42, "token": "kept"}, {"password": None}, {"password": {"password": True, "x": 1}}],
        "password_hint": "kept",
    }
    record = record_of(redactor(keys=["api_key", "Password"]), json.dumps(request).encode())
    assert record["request"] == {
        "API_Key": secret_digest("other-key-1", KEY),
        "deep": [
            {"password": secret_digest("42", KEY), "token": "kept"},
            {"password": None},
            {"password": {"password": secret_digest("true", KEY), "x": 1}},
        ],
        "password_hint": "kept",
    }


@pytest.mark.parametrize("spacing", [None, 1, "\t"])
def test_values_under_chosen_keys_are_replaced_inside_of_json_texts(spacing: Any) -> None:
    value = 'say "x" \\ é\n'
    arguments = json.dumps({"n": 1, "password": value, "pin": 42, "z": "kept"}, indent=spacing)
    twice = json.dumps({"inner": arguments, "password": value}, indent=spacing)
    functions = [{"function": {"arguments": arguments}}, {"function": {"arguments": twice}}]
    request = {"messages": [{"tool_calls": functions}]}
    chosen = redactor(keys=["password", "pin"])
    for body in (json.dumps(request), json.dumps([request]), json.dumps(request)[:-1]):
        record = record_of(chosen, body.encode(), b"data: " + body.encode() + b"\n\n", is_sse=True)
        text = json.dumps(record)
        assert "say" not in text
        assert text.count(secret_digest(value, KEY)) == 6, text
        assert text.count(secret_digest("42", KEY)) == 4
    first, second = record_of(chosen, json.dumps(request).encode())["request"]["messages"][0]["tool_calls"]
    clean = {"n": 1, "password": secret_digest(value, KEY), "pin": secret_digest("42", KEY), "z": "kept"}
    assert json.loads(first["function"]["arguments"]) == clean
    assert json.loads(json.loads(second["function"]["arguments"])["inner"]) == clean


def test_values_under_chosen_keys_are_replaced_in_streams_and_in_texts_that_are_cut_off() -> None:
    call = {"index": 0, "id": "t", "function": {"name": "login", "arguments": '{"password": "hunter-22"}'}}
    delta = {"id": "c", "choices": [{"index": 0, "delta": {"tool_calls": [call]}}], "password": "hunter-22"}
    stream = b": ping\r\ndata:" + json.dumps(delta).encode() + b"\r\n\r\n" + DONE
    cut = b'data: {"id":"c","password":"hunt'
    record = record_of(redactor(keys=["password"]), b'{"password": "hunter-22', stream + cut, is_sse=True)
    assert "hunt" not in json.dumps(record)
    raw = record["response_raw"]
    assert raw.startswith(": ping\r\ndata:{")
    assert raw.endswith('"password":"' + secret_digest("hunt", KEY) + '"')
    assert "\r\n\r\ndata: [DONE]\n\n" in raw
    (kept,) = record["response"]["choices"][0]["message"]["tool_calls"]
    assert json.loads(kept["function"]["arguments"]) == {"password": secret_digest("hunter-22", KEY)}
    assert record["request_raw"] == '{"password": "' + secret_digest("hunter-22", KEY) + '"'


def test_matches_of_patterns_are_replaced_in_texts_and_keys() -> None:
    chosen = redactor(patterns=[r"AIza\w+", r"^card \d+$"])
    body = {"a": "see AIzaFAKE, AIzaFAKE", "AIzaKEY": ["card 42", "my card 42"]}
    stream = b"data: " + json.dumps(body).encode() + b"\n\n"
    record = record_of(chosen, json.dumps(body).encode(), stream, is_sse=True)
    mark, card = secret_digest("AIzaFAKE", KEY), secret_digest("card 42", KEY)
    clean = {"a": f"see {mark}, {mark}", secret_digest("AIzaKEY", KEY): [card, "my card 42"]}
    assert record["request"] == clean
    assert json.loads(record["response_raw"].removeprefix("data: ")) == clean


@pytest.mark.parametrize("run", ["\\" * 300_000, "\\u" * 200_000, '\\"' * 200_000, '"password": "' * 50_000])
def test_no_text_takes_more_than_linear_time(run: str) -> None:
    chosen = redactor(keys=["password"], patterns=["never there"])
    for body in (json.dumps({"k": run + SECRET, "password": "hunter-22"}), f"{run}{SECRET}"):
        line = encode_exchange(exchange_of(body.encode()), chosen)
        assert SECRET.encode() not in line
        assert b"hunter" not in line


@pytest.mark.parametrize("pattern", ["a(b", "x*"])
def test_a_pattern_that_cannot_work_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(pattern))):
        redactor(patterns=[pattern])


def test_it_never_shows_what_it_looks_for() -> None:
    assert repr(redactor(keys=["k"], patterns=["hunter"])) == "Redactor(1 secrets, 1 keys, 1 patterns)"


PIECES = ["\\", '"', "/", "s", "\n", "é", "\U0001f511", "\u2028", " ", "u002d", "sk-"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


@given(before=TEXTS, after=TEXTS, levels=st.integers(0, 3), ascii_only=st.lists(st.booleans(), min_size=4, max_size=4))
@settings(deadline=None)
def test_no_encoding_hides_a_secret(before: str, after: str, levels: int, ascii_only: list[bool]) -> None:
    text = before + SECRET + after
    for level in range(levels):
        text = json.dumps([text], ensure_ascii=ascii_only[level]).replace("/", "\\/" if level % 2 else "/")
    request = json.dumps({"k": text}, ensure_ascii=ascii_only[3]).replace("-", "\\u002d").encode()
    for body in (request, request[:-1], b"data: " + request + b"\n\n"):
        record = record_of(redactor(), body, b"data: " + request + b"\n\n", is_sse=True)
        assert "FAKE" not in json.dumps(record)
        if body is request:
            clean = record["request"]["k"]
            for _ in range(levels):
                (clean,) = json.loads(clean)
            assert clean == before + MARK + after


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(body=st.dictionaries(st.text(max_size=5), ANY_JSON, max_size=3))
@settings(deadline=None)
def test_what_holds_no_secret_is_never_changed(body: dict[str, Any]) -> None:
    request = json.dumps(body).encode()
    looking = redactor(keys=["never a key"], patterns=["never there"])
    assert encode_exchange(exchange_of(request), looking) == encode_exchange(exchange_of(request))
