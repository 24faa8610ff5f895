"""Settings name the Parquet parts; a rollout through a model server is delivered as it is from token files."""

from __future__ import annotations

import json
import re
import secrets
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym_ray.errors import RolloutRetiredError
from gym_ray.model_server.app import build_app
from gym_ray.settings import TokenIdCaptureConfig
from gym_ray.testing.fake_vllm import END, FakeVllm, spelled
from gym_ray.testing.vllm_link import linked_vllm
from gym_ray.token_id_capture.config import build_token_capture, build_token_source
from gym_ray.token_id_capture.delivery import finalize_rollout_token_capture, retire_rollout_token_capture

ROLLOUT = "3-1"
ROUTE = f"/ng-rollout/{ROLLOUT}/training-token-capture/v1/chat/completions"
ANSWERS = ['CALL {"city":"Rome"}', "sunny", "bye"]
PARQUET = "gym_ray.token_id_capture.staging.parquet"


def settings(where: str | None, **options: Any) -> TokenIdCaptureConfig:
    if where is None:
        return TokenIdCaptureConfig(enabled=True)
    kwargs = {"where": where, **options}
    return TokenIdCaptureConfig(
        enabled=True,
        sink=f"{PARQUET}:ParquetTokenSink",
        sink_kwargs=kwargs,
        source=f"{PARQUET}:ParquetTokenSource",
        source_kwargs=kwargs,
        lineage_store=f"{PARQUET}:ParquetLineageResolver",
        lineage_store_kwargs=kwargs,
    )


async def converse(config: TokenIdCaptureConfig, directory: Path) -> None:
    """Ask a model server three times, each time behind all that it said before."""
    capture = build_token_capture(config, capture_dir=directory, workers=2)
    assert capture is not None
    fake = FakeVllm([[*spelled(answer), END] for answer in ANSWERS])
    messages: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
    try:
        async with linked_vllm(fake.script, scale_out=True) as link:
            app = build_app(link.engine, server_name="policy_model", capture=None, tokens=capture)
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://model") as http:
                for number in range(len(ANSWERS)):
                    response = await http.post(ROUTE, json={"messages": messages})
                    assert response.status_code == 200, response.text
                    messages.append(response.json()["choices"][0]["message"])
                    call = {"role": "tool", "tool_call_id": "k1", "content": "21 C"}
                    messages.append({"role": "user", "content": "more"} if number else call)
    finally:
        await capture.aclose()


async def delivered(config: TokenIdCaptureConfig, directory: Path) -> dict[str, Any]:
    """Run a rollout, and return its record with tokens; its capture is dropped then."""
    await converse(config, directory)
    record: dict[str, Any] = {"_ng_task_index": 3, "_ng_rollout_index": 1, "reward": 1.0}
    source = build_token_source(config, directory)
    assert source is not None
    try:
        build = await finalize_rollout_token_capture(record, source, rows="all")
        assert build is not None
        assert build["mask_reasons"] == []
        assert await retire_rollout_token_capture(ROLLOUT, source, build)
        with pytest.raises(RolloutRetiredError):
            await source.freeze(ROLLOUT)
    finally:
        await source.close()
    return record


def without_names(record: dict[str, Any]) -> Any:
    """Return a record without what is drawn at random for each call and item."""
    return json.loads(
        re.sub(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", "drawn", json.dumps(record))
    )


@pytest.mark.parametrize("kind", ["directory", "memory"])
async def test_rows_are_those_of_token_files(tmp_path: Path, kind: str) -> None:
    where = str(tmp_path / "segments") if kind == "directory" else f"memory://{secrets.token_hex(6)}"
    files = await delivered(settings(None), tmp_path / "files")
    parquet = await delivered(settings(where), tmp_path / "unused")
    assert not (tmp_path / "unused").exists()
    assert without_names(parquet) == without_names(files)
    (row,) = parquet["_ng_training_rows"]
    assert not row["mask_sample"]
    assert sum(row["loss_mask"]) == sum(len(answer) + 1 for answer in ANSWERS)
