"""The README's way to clean up behind a trainer does what it says, and can be repeated."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from gym_ray.errors import RolloutRetiredError
from gym_ray.model_server.control_client import ControlClient
from gym_ray.model_server.control_routes import control_routes
from gym_ray.testing.serving import served
from gym_ray.token_id_capture.staging import (
    CaptureAdmission,
    FileCaptureLedger,
    RolloutTokenCapture,
    ledger_commit,
)
from gym_ray.token_id_capture.staging.parquet import ParquetStagingSink, ParquetStagingSource

README = Path(__file__).parents[2] / "README.md"


def clean_up() -> Any:
    (code,) = [
        one for one in re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL) if "def clean_up" in one
    ]
    scope: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), scope)
    return scope["clean_up"]


async def staged(ledger: FileCaptureLedger, where: Path, rollout_id: str) -> str:
    """Stage and commit one call, and return its key."""
    admission = CaptureAdmission(rollout_id=rollout_id, model_call_id="call", mode="text")
    with ParquetStagingSink(where) as sink:
        capture = RolloutTokenCapture(sink, lambda: 1)
        call = capture.begin_call(admission)
        coords = capture.complete_call(
            call, prompt_token_ids=[1, 2], generated_token_ids=[3], generated_logprobs=[-0.5]
        )
    served_answer = {"id": "a1", "choices": [{"message": {"role": "assistant", "content": "c"}}]}
    asked = [{"role": "user", "content": "ab"}]
    commit = ledger_commit(
        coords, admission, served=served_answer, response_id="a1", request_items=asked, admitted_at=1.0
    )
    await ledger.record(commit)
    return str(coords.staging_key)


async def test_tokens_go_first_then_the_ledger_and_other_rollouts_stay(tmp_path: Path) -> None:
    ledger, where = FileCaptureLedger(tmp_path / "ledger"), tmp_path / "staged"
    gone, kept = await staged(ledger, where, "0-0"), await staged(ledger, where, "1-0")
    with served(Starlette(routes=control_routes(ledger, "the secret"))) as url:
        clean_up()(url, "the secret", str(where), "0-0")
        with ControlClient(url, "the secret", timeout_s=20) as control:
            with pytest.raises(RolloutRetiredError):
                control.manifest("0-0")
            assert [row.staging_key for row in control.manifest("1-0").records] == [kept]
    with ParquetStagingSource(where) as source:
        assert len(source.fetch([kept])) == 1
        with pytest.raises(KeyError, match="retired"):
            source.fetch([gone])
