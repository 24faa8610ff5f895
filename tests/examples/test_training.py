"""The example that reads training rows gives the same arrays from records and from token files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gym_ray.agents.callable_loading import load_callable
from gym_ray.testing.token_source import call_entry
from gym_ray.token_id_capture import TokenCaptureStore, finalize_rollout_token_capture

EXAMPLE = Path(__file__).parents[2] / "examples" / "training" / "read_rows.py"
RESPONSE = {"id": "resp_1", "object": "response", "output": []}


@pytest.fixture
def example() -> ModuleType:
    return sys.modules[load_callable(f"{EXAMPLE}:main").__module__]


async def finished(store: TokenCaptureStore, index: int, **members: Any) -> dict[str, Any]:
    """Capture two calls of a rollout and return its record."""
    rollout_id = f"{index}-0"
    first = call_entry("a", [1, 2], [3, 4], rollout_id=rollout_id)
    for entry in (first, call_entry("b", [5], [6], first, rollout_id=rollout_id, response_id="resp_1")):
        await store.put(entry)
    record = {"_ng_task_index": index, "_ng_rollout_index": 0, "reward": 0.5, "response": dict(RESPONSE), **members}
    await finalize_rollout_token_capture(record, store, rows="all")
    return record


async def test_both_ways_give_the_same_arrays_and_nothing_that_is_masked(
    tmp_path: Path, example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = TokenCaptureStore(tmp_path / "tokens")
    await store.mark_incomplete("1-0", "lost")
    records = [await finished(store, 0), await finished(store, 1), await finished(store, 2, mask_sample=True)]
    for read in (example.samples_of_record, lambda record: example.samples_of_files(store, record)):
        (sample,) = [sample for record in records for sample in read(record)]
        assert (sample.name, sample.reward) == ("0-0 main", 0.5)
        assert sample.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
        assert sample.loss_mask.tolist() == [False, False, True, True, False, True]
        assert sample.log_probs.tolist() == [0.0, 0.0, -0.25, -0.5, 0.0, -0.25]
        assert (sample.loss_mask.dtype, sample.log_probs.dtype) == (np.bool_, np.float32)
    await store.close()
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    for options in ([], ["--tokens", str(tmp_path / "tokens")]):
        monkeypatch.setattr(sys, "argv", ["read_rows.py", str(path), *options])
        example.main()
        said = [
            "0-0 main: reward 0.5, 6 tokens, 3 to learn from, mean log prob -0.333",
            "1-0: nothing to learn from (masked)",
            "2-0: nothing to learn from (masked)",
        ]
        assert capsys.readouterr().out.splitlines() == said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["none.jsonl"], "none.jsonl: no such file"), ([__file__, "--tokens", "nowhere"], "nowhere: no such directory")],
)
def test_what_is_not_there_is_named(
    example: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["read_rows.py", *arguments])
    with pytest.raises(SystemExit):
        example.main()
    assert message in capsys.readouterr().err
