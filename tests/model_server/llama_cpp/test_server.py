"""The embedded HTTP server: it starts or says why, stops for good, and takes its old port again."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from gym_ray.dialects.neutral import PromptRequest, ResponseFormat, Tool, Turn
from gym_ray.errors import ServerStartError
from gym_ray.model_server.llama_cpp.grammar import build_grammar
from gym_ray.model_server.llama_cpp.server import LlamaCppServer


def test_a_missing_model_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match=r"none\.gguf: no such model file"):
        LlamaCppServer(tmp_path / "none.gguf").start()


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServerStartError, match=rf"127\.0\.0\.1:{port}: cannot listen there"):
            LlamaCppServer(tmp_path / "model.gguf", port=port).start()


def test_a_server_that_does_not_run_has_no_url(tmp_path: Path) -> None:
    server = LlamaCppServer(tmp_path / "model.gguf")
    with pytest.raises(ServerStartError, match="not running"):
        _ = server.url
    server.stop()


@pytest.mark.model
def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + b"\x00" * 100)
    with pytest.raises(ServerStartError, match=r"model\.gguf: llama\.cpp could not serve it on 127\.0\.0\.1:0"):
        LlamaCppServer(tmp_path / "model.gguf").start()


@pytest.mark.model
def test_start_stop_and_the_old_port_again(weights: Path) -> None:
    server = LlamaCppServer(weights, n_ctx=256, n_parallel=1)
    url = server.start()
    try:
        assert server.start() == url == server.url
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}
        assert httpx.get(f"{url}/props").json()["default_generation_settings"]["n_ctx"] == 256
    finally:
        server.stop()
    server.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")
    again = LlamaCppServer(weights, port=int(urlsplit(url).port or 0), n_ctx=256, n_parallel=1)
    try:
        assert again.start() == url
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}
    finally:
        again.stop()


OBJECT = {"type": "object", "additionalProperties": False}
SCHEMAS: list[dict[str, Any]] = [
    {},
    {"type": "string", "maxLength": 0},
    {"type": "array", "maxItems": 0},
    {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 1},
    {"type": ["integer", "null"]},
    {"enum": ['a"b\\c', "größe\n", None, 1.5, {"k": [True]}]},
    {**OBJECT, "properties": {}},
    {**OBJECT, "properties": {'k"\\\n{}': {"type": "boolean"}, "ü": {"const": "x"}, "c": {}}, "required": ["ü"]},
    {**OBJECT, "properties": {"a": {"type": "object"}, "b": {"oneOf": [{"type": "string"}, {"type": "array"}]}}},
    {
        "$ref": "#/$defs/node",
        "$defs": {"node": {**OBJECT, "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}},
    },
]


@pytest.mark.model
@pytest.mark.parametrize("schema", SCHEMAS)
def test_llama_cpp_takes_every_grammar(schema: dict[str, Any], model_url: str) -> None:
    tool = Tool('t"o\\ol', "", {**OBJECT, "properties": {"value": schema}, "$defs": schema.get("$defs", {})})
    request = PromptRequest((Turn("user", "x"),), (tool,), response_format=ResponseFormat(schema))
    body = {"prompt": [2, 105], "n_predict": 1, "temperature": 0, "grammar": build_grammar(request, "line")}
    answer = httpx.post(f"{model_url}/completion", json=body, timeout=30)
    assert answer.status_code == 200, answer.text


@pytest.mark.model
@pytest.mark.parametrize("index", [4, 5, 7])
def test_what_a_grammar_lets_through_is_json_of_the_schema(index: int, model_url: str) -> None:
    request = PromptRequest((Turn("user", "x"),), response_format=ResponseFormat(SCHEMAS[index]))
    body = {
        "prompt": [2, 105],
        "n_predict": 600,
        "temperature": 1,
        "seed": 1,
        "grammar": build_grammar(request, "line"),
    }
    answer = httpx.post(f"{model_url}/completion", json=body, timeout=60).json()
    assert answer["stop_type"] == "eos"
    value = json.loads(answer["content"])
    if index == 4:
        assert value is None or isinstance(value, int)
    elif index == 5:
        assert value in SCHEMAS[5]["enum"]
    else:
        assert value["ü"] == "x"
        assert set(value) <= {'k"\\\n{}', "ü", "c"}
