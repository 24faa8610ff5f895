from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gym_ray.evidence.run_result import RunFailure, RunResult
from gym_ray.rollouts.joining import Joiner
from gym_ray.rollouts.ports import AttemptJob, JoinOutcome, JoinRequest
from gym_ray.rollouts.reports.facts_reading import read_facts
from gym_ray.rollouts.rows.input_rows import RowOptions
from gym_ray.rollouts.run_files.run_start import RunLock, begin_run
from gym_ray.rollouts.run_paths import OutputMark, RunPaths
from gym_ray.rollouts.tokens.token_delivery import TokenDelivery, TokenPlan
from gym_ray.settings import RunSettings, TokenIdCaptureConfig
from gym_ray.token_id_capture.assembly import RowsWanted
from gym_ray.token_id_capture.protocols import TokenCaptureSnapshot
from gym_ray.token_id_capture.records import ParentResolutionStatus, TokenEntry, stamp_lineage
from gym_ray.token_id_capture.staging.ledger.file_ledger import FileCaptureLedger
from gym_ray.token_id_capture.store import TokenCaptureStore

ROW = {"responses_create_params": {"input": "q"}, "agent_ref": {"name": "a"}}
INDICES = {"_ng_task_index": 0, "_ng_rollout_index": 0, "_ng_attempt_index": 1}
JOB = AttemptJob(0, 1, "0-0-a1", "a", json.dumps({**ROW, **INDICES}).encode())
OUTPUT = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}]
REPLY = {"reward": 1.0, "response": {"id": "resp_1", "object": "response", "output": OUTPUT}}
AGENTS = frozenset({"a"})
ASKED = JoinRequest(OutputMark(0, 0))


def entry(call_id: str = "c1", prompt: tuple[int, ...] = (1, 2), parent: TokenEntry | None = None) -> TokenEntry:
    made = TokenEntry(
        rollout_id=JOB.rollout_id,
        model_call_id=call_id,
        prompt_token_ids=list(prompt),
        generation_token_ids=[3, 4],
        generation_log_probs=[-0.5, -0.25],
        output_items=OUTPUT,
        token_item_index=0,
        response_id="resp_1",
    )
    if parent is None:
        return stamp_lineage(made, None, ParentResolutionStatus.ROOT)
    return stamp_lineage(made, parent.model_call_id, ParentResolutionStatus.RESOLVED)


class WatchedStore(TokenCaptureStore):
    """Notes what is asked of it, and how many bytes of records were durable then."""

    def __init__(self, root: Path, output: Path) -> None:
        super().__init__(root)
        self.asked: list[tuple[str, int]] = []
        self._output = output

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        self.asked.append(("freeze", self._output.stat().st_size))
        return await super().freeze(rollout_id)

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        self.asked.append(("drop", self._output.stat().st_size))
        return await super().drop(rollout_id, snapshot_id=snapshot_id, version=version)


class Setting:
    def __init__(self, tmp_path: Path) -> None:
        source = tmp_path / "in.jsonl"
        source.write_text(json.dumps(ROW) + "\n")
        self.paths = RunPaths.of(tmp_path / "out.jsonl")
        with RunLock(self.paths) as lock:
            begin_run(lock, source, RowOptions())
        self.paths.output.touch()
        self.store = WatchedStore(tmp_path / "tokens", self.paths.output)

    async def join(
        self,
        result: RunResult,
        *,
        agents: frozenset[str] = AGENTS,
        retire: bool = True,
        rows: RowsWanted = "none",
        tries: int = 1,
    ) -> Any:
        joiner = Joiner(self.paths, None, tokens=TokenDelivery(self.store, agents, retire=retire, rows=rows))
        try:
            for again in range(tries):
                outcome: JoinOutcome = await joiner.join(JOB, result, replace(ASKED, retry=again > 0))
        finally:
            await joiner.aclose()
        assert outcome.written is not None
        path = self.paths.output if outcome.written.file == "main" else self.paths.failures
        return json.loads(path.read_text()), outcome.summary


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    return Setting(tmp_path)  # type: ignore[return-value]


def reply(**changes: Any) -> RunResult:
    return RunResult(json.dumps({**REPLY, **changes}).encode(), None, 7.0)


async def test_a_record_gets_its_tokens_and_only_then_the_capture_goes(setting: Setting) -> None:
    await setting.store.put(entry())
    record, summary = await setting.join(reply())
    (item,) = record["response"]["output"]
    assert (item["prompt_token_ids"], item["generation_token_ids"]) == ([1, 2], [3, 4])
    assert item["generation_log_probs"] == [-0.5, -0.25]
    assert item["content"] == OUTPUT[0]["content"]
    assert "mask_sample" not in record
    assert "mask_reasons" not in record["_ng_token_capture"]
    assert summary.token_mask_reasons == ()
    size = setting.paths.output.stat().st_size
    assert setting.store.asked == [("freeze", 0), ("drop", size)]
    assert not await setting.store.has_evidence(JOB.rollout_id) or setting.store.read_entries(JOB.rollout_id) == []


async def test_a_capture_that_is_to_stay_stays(setting: Setting) -> None:
    await setting.store.put(entry())
    await setting.join(reply(), retire=False)
    assert [kept.model_call_id for kept in setting.store.read_entries(JOB.rollout_id)] == ["c1"]


async def test_a_masked_rollout_says_why_and_keeps_its_evidence(setting: Setting) -> None:
    await setting.store.put(entry())
    await setting.store.mark_incomplete(JOB.rollout_id, "c2")
    record, summary = await setting.join(reply())
    assert record["mask_sample"] is True
    assert "capture_incomplete" in record["_ng_token_capture"]["mask_reasons"]
    assert summary.token_mask_reasons == tuple(record["_ng_token_capture"]["mask_reasons"])
    assert len(setting.store.read_entries(JOB.rollout_id)) == 1


async def test_without_any_record_of_tokens_a_rollout_is_masked(setting: Setting) -> None:
    record, summary = await setting.join(reply())
    assert (record["mask_sample"], summary.token_mask_reasons) == (True, ("no_token_records",))


@pytest.mark.parametrize(
    "result",
    [
        RunResult(None, RunFailure("agent_run_error", "ValueError", "no"), 7.0),
        reply(_ng_failure_class="judge_failed"),
    ],
    ids=["failed", "reply with a failure class"],
)
async def test_a_failure_keeps_its_evidence(setting: Setting, result: RunResult) -> None:
    await setting.store.put(entry())
    record, _ = await setting.join(result)
    assert record["_ng_failure_class"]
    assert len(setting.store.read_entries(JOB.rollout_id)) == 1


async def test_the_capture_is_found_by_the_attempt_and_not_by_the_reply(setting: Setting) -> None:
    await setting.store.put(entry())
    record, _ = await setting.join(reply(_ng_rollout_id="9-9", _ng_attempt_index=4))
    assert record["response"]["output"][0]["generation_token_ids"] == [3, 4]
    assert record.get("_ng_rollout_id") != "9-9"


async def test_all_branches_stand_in_the_record_as_rows_with_loss_on_shared_tokens_once(setting: Setting) -> None:
    root = entry()
    for made in (root, entry("c2", (1, 2, 3, 4, 7), root), entry("c3", (1, 2, 3, 4, 8, 9), root)):
        await setting.store.put(made)
    record, _ = await setting.join(reply(response={"object": "response", "output": []}), rows="all")
    main, branch = record["_ng_training_rows"]
    assert record["mask_sample"] is True  # one response cannot hold two chains, and nobody said which one counts
    assert (main["mask_sample"], branch["mask_sample"]) == (False, False)
    assert (main["token_ids"], branch["token_ids"]) == ([1, 2, 3, 4, 7, 3, 4], [1, 2, 3, 4, 8, 9, 3, 4])
    assert (main["loss_mask"], branch["loss_mask"]) == ([0, 0, 1, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0, 1, 1])
    assert (branch["shared_with"], branch["shared_prefix"]) == ("main", 4)
    assert main["policy_log_probs"] == [-0.5, -0.25] * 2


async def test_what_was_lost_masks_every_row(setting: Setting) -> None:
    await setting.store.put(entry())
    await setting.store.mark_incomplete(JOB.rollout_id, "c9")
    record, _ = await setting.join(reply(), rows="all")
    assert [row["mask_sample"] for row in record["_ng_training_rows"]] == [True]


async def test_a_rollout_that_its_scorer_masked_keeps_its_evidence(setting: Setting) -> None:
    await setting.store.put(entry())
    record, _ = await setting.join(reply(mask_sample=True), rows="all")
    assert record["response"]["output"][0]["generation_token_ids"] == [3, 4]
    (row,) = record["_ng_training_rows"]
    assert (row["mask_sample"], row["reasons"]) == (True, ["already_masked"])
    assert len(setting.store.read_entries(JOB.rollout_id)) == 1


async def test_an_agent_that_takes_no_part_is_left_alone(setting: Setting) -> None:
    record, summary = await setting.join(reply(), agents=frozenset({"b"}))
    assert "_ng_token_capture" not in record
    assert summary.token_mask_reasons is None
    assert setting.store.asked == []


CLAIMED = {
    "response": {
        **REPLY["response"],  # type: ignore[dict-item]
        "output": [{**OUTPUT[0], "prompt_token_ids": [9], "generation_token_ids": [8], "generation_log_probs": [-9.0]}],
    },
    "_ng_token_capture": {"n_calls": 7, "mask_reasons": ["invented"]},
    "_ng_training_rows": [{"token_ids": [9, 8]}],
    "mask_sample": False,
}


@pytest.mark.parametrize("lost", [False, True], ids=["whole", "a call was lost"])
async def test_what_a_reply_says_about_tokens_gives_way_to_what_was_captured(setting: Setting, lost: bool) -> None:
    await setting.store.put(entry())
    if lost:
        await setting.store.mark_incomplete(JOB.rollout_id, "c2")
    record, summary = await setting.join(reply(**CLAIMED), rows="main")
    (item,) = record["response"]["output"]
    assert item.get("generation_token_ids", [3, 4]) == [3, 4]
    assert item.get("prompt_token_ids", [1, 2]) == [1, 2]
    assert [row["token_ids"] for row in record["_ng_training_rows"]] == [[1, 2, 3, 4]]
    assert [row["mask_sample"] for row in record["_ng_training_rows"]] == [lost]
    assert record["mask_sample"] is lost
    assert summary.token_mask_reasons == (("capture_incomplete", "marked_incomplete") if lost else ())
    assert record["_ng_token_capture"]["n_calls"] == 1
    assert (setting.store.read_entries(JOB.rollout_id) != []) is lost


@pytest.mark.parametrize("tries", [1, 2])
async def test_what_the_reply_of_an_agent_that_takes_no_part_says_stays_and_does_not_count(
    setting: Setting, tries: int
) -> None:
    record, summary = await setting.join(reply(**CLAIMED), agents=frozenset(), tries=tries)
    assert {name: record[name] for name in CLAIMED} == CLAIMED
    assert summary.token_mask_reasons is None
    ((_, facts),) = read_facts(setting.paths, verdict_of=_never)
    assert facts.summary["token_mask_reasons"] is None, "metrics count what facts say"


def _never(_: dict[str, Any]) -> dict[str, Any]:
    raise AssertionError("the joiner kept no facts")


async def test_what_masks_the_reply_of_an_agent_that_takes_part_is_in_its_facts(setting: Setting) -> None:
    _, summary = await setting.join(reply())
    ((_, facts),) = read_facts(setting.paths, verdict_of=_never)
    assert facts.summary["token_mask_reasons"] == list(summary.token_mask_reasons) == ["no_token_records"]


async def test_a_join_that_is_asked_for_again_says_the_same(setting: Setting) -> None:
    record, summary = await setting.join(reply(), tries=2)
    assert summary.token_mask_reasons == tuple(record["_ng_token_capture"]["mask_reasons"]) == ("no_token_records",)


async def test_a_plan_opens_what_deletes_earlier_captures(tmp_path: Path) -> None:
    files = TokenPlan.of(RunSettings(token_id_capture=TokenIdCaptureConfig(enabled=True, dir=tmp_path / "t")))
    named = {"sink": "m:S", "lineage_store": "m:L", "rebuild_response": False}
    without_source = TokenPlan.of(RunSettings(token_id_capture=TokenIdCaptureConfig(enabled=True, **named)))
    source = {"source": "gym_ray.token_id_capture.store:TokenCaptureStore", "source_kwargs": {"root": tmp_path / "t"}}
    of_source = TokenPlan.of(RunSettings(token_id_capture=TokenIdCaptureConfig(enabled=True, **named, **source)))
    assert files is not None
    assert without_source is not None
    assert of_source is not None
    store = TokenCaptureStore(tmp_path / "t")
    for plan in (files, of_source):
        await store.put(entry())
        stale = plan.stale_captures()
        assert stale is not None
        await stale.delete(JOB.rollout_id)
        await stale.close()
        assert store.read_entries(JOB.rollout_id) == []
    assert without_source.stale_captures() is None
    await store.close()


async def test_where_workers_keep_the_tokens_earlier_rows_are_deleted_and_nothing_is_rebuilt(tmp_path: Path) -> None:
    block = TokenIdCaptureConfig(enabled=True, external_staging=True, rebuild_response=False, dir=tmp_path)
    plan = TokenPlan.of(RunSettings(token_id_capture=block))
    assert plan is not None
    assert plan.delivery() is None
    ledger = FileCaptureLedger(tmp_path)
    await ledger.record_failure(JOB.rollout_id, "c0", "of an earlier run")
    await ledger.retire(["another"])
    stale = plan.stale_captures()
    assert stale is not None
    for rollout_id in (JOB.rollout_id, "another"):
        await stale.delete(rollout_id)
        assert not await ledger.has_rows(rollout_id)
    await stale.close()
    await ledger.close()


def test_a_run_without_capture_has_no_plan(tmp_path: Path) -> None:
    assert TokenPlan.of(RunSettings()) is None
    block = TokenIdCaptureConfig(enabled=True, dir=tmp_path, rebuild_response=False)
    plan = TokenPlan.of(RunSettings(token_id_capture=block))
    assert plan is not None
    assert plan.delivery() is None
