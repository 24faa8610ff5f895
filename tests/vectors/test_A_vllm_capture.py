"""A vLLM server behind a model server: what goes upstream, what the record says of it, the compaction adapter."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx

from gym_ray.model_call_capture import CaptureWriter, read_model_call_records
from gym_ray.model_server.app import build_app
from gym_ray.model_server.engines import app_options, build_engine
from gym_ray.model_server.serving import AppServer
from gym_ray.settings import CompactingVllmModelOptions, ServerSettings, VllmModelOptions
from gym_ray.testing.fake_upstream import FakeUpstream, UpstreamRequest
from gym_ray.testing.script import ScriptedAnswer

FILE = "A_vllm_capture.json"
SERVERS = {"VLLMModel": ("vllm_model", VllmModelOptions)}
SERVERS["VLLMModelWithCompaction"] = ("vllm_model_with_compaction", CompactingVllmModelOptions)


def backend(case: dict[str, Any], document: dict[str, Any], request: UpstreamRequest) -> ScriptedAnswer:
    if request.path == "/tokenize":
        return ScriptedAnswer([b'{"count":3,"max_model_len":64,"tokens":[10,11,12]}'])
    match case["backend"]:
        case "ok":
            return ScriptedAnswer([json.dumps(document["backend_answer"]).encode()])
        case "503 busy":
            return ScriptedAnswer([b"busy"], 503, "text/plain")
        case "400 with 'context length' in the body":
            return ScriptedAnswer([b'{"message":"maximum context length is 8"}'], 400)
    raise AssertionError(case["backend"])


def server_of(case: dict[str, Any], url: str) -> ServerSettings:
    implementation, options = SERVERS[case["server"]]
    given = {"base_url": f"{url}/v1", "model": "bm", "dialects": ["chat"], **case["config"]}
    return ServerSettings("policy_model", "responses_api_models", implementation, options.model_validate(given))


async def test_vector(
    case: dict[str, Any], tmp_path: Path, departures: dict[str, Any], document: dict[str, Any]
) -> None:
    fake = FakeUpstream(lambda request: backend(case, document, request))
    upstream = AppServer(fake)
    await upstream.start()
    server = server_of(case, upstream.url)
    engine = build_engine(server, local_engine_url=None)
    await engine.start()
    writer = CaptureWriter(tmp_path / "captures", server_name="policy_model")
    writer.start()
    app = build_app(engine, server_name="policy_model", capture=writer, options=app_options(server, engine))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://model") as http:
        response = await http.post(f"/ng-rollout/0-0{case['path']}", json=case["body"])
    await engine.aclose()
    await upstream.stop(grace_s=5)
    await asyncio.to_thread(writer.close)
    rules = [rule for rule in departures.values() if rule["file"] == FILE and case["id"] in rule.get("ids", [])]
    expected = {**case["expected"], **{key: value for rule in rules for key, value in rule.get("expected", {}).items()}}
    changes = {key: value for rule in rules for key, value in rule.get("captured", {}).items()}
    changes |= {name: None for rule in rules for name in rule.get("null", [])}
    assert response.status_code == expected["status"]
    if "json" in expected:
        assert response.json() == expected["json"]
    check_upstream([request for request in fake.requests if request.path != "/tokenize"], expected)
    if "captured" in expected:
        records = [record.as_json() for record in read_model_call_records(writer.store, "0-0")]
        assert len(records) == len(expected["captured"])
        for found, record in zip(records, expected["captured"], strict=True):
            wanted = {**record, **changes}
            assert {key: found[key] for key in wanted if found[key] != wanted[key]} == {}


def check_upstream(requests: list[UpstreamRequest], expected: dict[str, Any]) -> None:
    bodies = [json.loads(request.body) for request in requests]
    assert len(bodies) == expected["upstream_requests"]
    if "upstream_required_prefix_token_ids" in expected:
        prefixes = [body.get("required_prefix_token_ids") for body in bodies]
        assert prefixes == expected["upstream_required_prefix_token_ids"]
    if "upstream_stream" in expected:
        assert [body.get("stream") for body in bodies] == expected["upstream_stream"]
