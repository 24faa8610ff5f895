"""Rollouts on the real model behind a worker: the row is, token for token, what the engine said.

A model server admits the calls, the worker stages them into Parquet segments, and a trainer asks for the manifest. What
the engine said is read on the wire between the worker and llama.cpp, before any of our code looks at it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym_ray.dialects import CHAT, DIALECT_BY_PATH, MESSAGES, RESPONSES
from gym_ray.dialects.reassembly import reassemble
from gym_ray.inference_worker.app import build_worker_app
from gym_ray.inference_worker.prefixes import StagedPrefixes
from gym_ray.inference_worker.staging_engine import StagingEngine
from gym_ray.inference_worker.weights import WeightVersion
from gym_ray.model_server.app import build_app
from gym_ray.model_server.control_client import ControlClient
from gym_ray.model_server.llama_cpp.client import LlamaCppClient
from gym_ray.model_server.llama_cpp.engine import LlamaCppEngine
from gym_ray.model_server.serving import AppServer
from gym_ray.model_server.upstream import UpstreamEngine
from gym_ray.token_id_capture.external_staging import ExternalStaging
from gym_ray.token_id_capture.staging import (
    FileCaptureLedger,
    LinearizedRow,
    build_receipt,
    verify_and_linearize,
)
from gym_ray.token_id_capture.staging.async_capture import AsyncRolloutTokenCapture
from gym_ray.token_id_capture.staging.capture import RolloutTokenCapture
from gym_ray.token_id_capture.staging.parquet import ParquetStagingSink, ParquetStagingSource

pytestmark = pytest.mark.model

PATH_OF = {dialect: path for path, dialect in DIALECT_BY_PATH.items()}
SHORT = {"type": "json_schema", "name": "status", "schema": {"enum": ["It is shipped.", "It is on hold."]}}
QUESTIONS = ("Where is order 1043?", "Thanks. And who carries it?", "Good.")
CONTROL = "a trainer's secret"
WORKER = "the worker's key"


@dataclass
class Heard:
    """What went over the wire to llama.cpp and back, completion by completion."""

    prompts: list[list[int]] = field(default_factory=list)
    generated: list[list[int]] = field(default_factory=list)
    log_probs: list[list[float]] = field(default_factory=list)


class ListeningClient(LlamaCppClient):
    """Keeps what goes over the wire."""

    heard: Heard

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        answer = await super().complete(body)
        self.heard.prompts.append(list(body["prompt"]))
        self.heard.generated.append(list(answer["tokens"]))
        self.heard.log_probs.append([item["logprob"] for item in answer["completion_probabilities"]])
        return answer


@asynccontextmanager
async def worker(store: Path, model_url: str, heard: Heard, weight_version: int = 0) -> AsyncIterator[str]:
    """A worker that knows nothing but where its storage is; gives its URL."""
    async with AsyncExitStack() as stack:
        engine = LlamaCppEngine(model_url, model_name="policy")
        listening = ListeningClient(model_url, max_connections=8, request_timeout_s=60)
        listening.heard = heard
        engine._client = listening
        sink = stack.enter_context(ParquetStagingSink(store))
        weights = WeightVersion(weight_version)
        capture = AsyncRolloutTokenCapture(RolloutTokenCapture(sink, weights))
        stack.push_async_callback(capture.aclose)
        source = stack.enter_context(ParquetStagingSource(store))
        staging = StagingEngine(engine, capture, StagedPrefixes(source))
        stack.push_async_callback(staging.aclose)
        await staging.ready(30)
        server = AppServer(build_worker_app(staging, weights, name="worker", api_key=WORKER))
        await server.start()
        stack.push_async_callback(server.stop, 5)
        yield server.url


@asynccontextmanager
async def model_server(ledger: Path, worker_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A model server in front of a worker; gives a client of it."""
    async with AsyncExitStack() as stack:
        engine = UpstreamEngine(f"{worker_url}/v1", api_key=WORKER, model_name="policy", dialects=(CHAT,))
        await engine.start()
        stack.push_async_callback(engine.aclose)
        external = ExternalStaging(FileCaptureLedger(ledger), "vllm_worker", CONTROL)
        stack.push_async_callback(external.aclose)
        server = AppServer(build_app(engine, server_name="policy", capture=None, external=external))
        await server.start()
        stack.push_async_callback(server.stop, 5)
        yield await stack.enter_async_context(httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60))


class Talk:
    """One rollout in a dialect: asks, and goes on behind the answer."""

    def __init__(self, dialect: str, *, stream: bool) -> None:
        self.dialect, self.said, self.answer = dialect, list[dict[str, Any]](), dict[str, Any]()
        self._fixed: dict[str, Any] = {"model": "policy", "temperature": 0, "stream": stream}
        if dialect == RESPONSES:
            self._fixed |= {"text": {"format": SHORT}, "max_output_tokens": 48}
        elif dialect == CHAT:
            self._fixed |= {"response_format": {"type": "json_schema", "json_schema": SHORT}, "max_tokens": 48}
        else:
            self._fixed |= {"output_config": {"format": SHORT}, "max_tokens": 48}

    async def ask(self, client: httpx.AsyncClient, text: str) -> None:
        self.said.append({"role": "user", "content": text})
        body = {**self._fixed, "input" if self.dialect == RESPONSES else "messages": self.said}
        path = f"/ng-rollout/0-0/training-token-capture{PATH_OF[self.dialect]}"
        response = await client.post(path, json=body)
        assert response.status_code == 200, response.text
        for reserved in (b"ng_commit_coords", b"ng_capture", b"token_ids", b"chain_hash"):
            assert reserved not in response.content
        answer = reassemble(self.dialect, response.content) if self._fixed["stream"] else response.json()
        assert answer is not None
        self.answer = answer
        self.said.append(self._turn(answer))

    def _turn(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        if self.dialect == RESPONSES:
            (item,) = answer["output"]
            return dict(item)
        if self.dialect == MESSAGES:
            return {"role": "assistant", "content": answer["content"]}
        return {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}


def rebuilt(url: str, store: Path, response: Mapping[str, Any]) -> LinearizedRow:
    """Do what a trainer does: manifest, receipt, tokens, row."""
    with ControlClient(url, CONTROL, timeout_s=20) as control:
        manifest = control.manifest("0-0")
    receipt = build_receipt(manifest, response, reward=1.0, declared_response_id=response["id"])
    assert receipt.failure_reason is None
    source = ParquetStagingSource(store)
    return verify_and_linearize(receipt, source.fetch([row.staging_key for row in receipt.manifest]))


def check(row: LinearizedRow, heard: Heard) -> None:
    """Hold a row against the wire: every token, every place of loss, every log probability."""
    tokens: list[int] = []
    mask: list[float] = []
    log_probs: list[float] = []
    for prompt, generated, probabilities in zip(heard.prompts, heard.generated, heard.log_probs, strict=True):
        assert prompt[: len(tokens)] == tokens, "the parent's exact tokens went in"
        carried = len(prompt) - len(tokens)
        tokens = [*prompt, *generated]
        mask += [0.0] * carried + [1.0] * len(generated)
        log_probs += [0.0] * carried + probabilities
    assert list(row.token_ids) == tokens
    assert list(row.token_mask) == mask
    assert list(row.logprobs) == pytest.approx(log_probs, rel=1e-6)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", sorted(PATH_OF))
async def test_a_rollout_becomes_the_row_that_the_engine_said(
    tmp_path: Path, model_url: str, dialect: str, stream: bool
) -> None:
    heard, talk = Heard(), Talk(dialect, stream=stream)
    async with worker(tmp_path / "staged", model_url, heard) as url, model_server(tmp_path / "ledger", url) as client:
        for text in QUESTIONS:
            await talk.ask(client, text)
        row = await asyncio.to_thread(rebuilt, str(client.base_url), tmp_path / "staged", talk.answer)
    assert len(row.model_call_ids) == len(QUESTIONS)
    check(row, heard)


async def test_a_restarted_worker_continues_a_chain_from_storage_alone(tmp_path: Path, model_url: str) -> None:
    heard, talk = Heard(), Talk(CHAT, stream=False)
    for version, text in enumerate(QUESTIONS):
        async with (
            worker(tmp_path / "staged", model_url, heard, version) as url,
            model_server(tmp_path / "ledger", url) as client,
        ):
            await talk.ask(client, text)
            row = await asyncio.to_thread(rebuilt, str(client.base_url), tmp_path / "staged", talk.answer)
    check(row, heard)
    assert list(row.weight_versions) == [0, 1, 2]


async def test_without_its_storage_a_worker_serves_and_the_rollout_is_poisoned(tmp_path: Path, model_url: str) -> None:
    heard, talk = Heard(), Talk(CHAT, stream=False)
    for store in ("staged", "elsewhere"):
        async with worker(tmp_path / store, model_url, heard) as url, model_server(tmp_path / "ledger", url) as client:
            await talk.ask(client, QUESTIONS[0])
            with ControlClient(str(client.base_url), CONTROL, timeout_s=20) as control:
                manifest = await asyncio.to_thread(control.manifest, "0-0")
    assert len(manifest.records) == 1
    assert "worker_capture_failed" in [failure.reason for failure in manifest.failures]
    assert build_receipt(manifest, talk.answer, reward=1.0).capture_poisoned
