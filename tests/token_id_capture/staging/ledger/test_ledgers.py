"""What every ledger promises, asked of the one in files and of the one in memory."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gym_ray.errors import RecordConflictError, RolloutRetiredError
from gym_ray.testing.ledger_commits import asked_at, commit_of_turn
from gym_ray.token_id_capture.records import ParentResolutionStatus
from gym_ray.token_id_capture.staging import (
    CaptureLedger,
    CaptureLedgerCommit,
    FileCaptureLedger,
    ManifestFailure,
    MemoryCaptureLedger,
    RolloutRemoval,
    admit,
)

UNRESOLVED = ParentResolutionStatus.UNRESOLVED


@pytest.fixture(params=["files", "memory"])
async def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[CaptureLedger]:
    made: CaptureLedger = FileCaptureLedger(tmp_path / "ledger") if request.param == "files" else MemoryCaptureLedger()
    yield made
    await made.close()


async def parent(ledger: CaptureLedger, turn: int) -> str | None:
    match = (await ledger.resolve("r1", asked_at(turn))).match
    return match and match.model_call_id


async def kept(ledger: CaptureLedger, rollout_id: str = "r1") -> list[str]:
    return [record.model_call_id for record in (await ledger.manifest(rollout_id)).records]


def test_ledgers_are_what_the_protocol_says(ledger: CaptureLedger) -> None:
    assert isinstance(ledger, CaptureLedger)


async def test_a_replay_is_kept_once_and_a_change_is_refused(ledger: CaptureLedger) -> None:
    await ledger.record(commit_of_turn(0))
    await ledger.record(commit_of_turn(0))
    with pytest.raises(RecordConflictError, match="'c0' has another row"):
        await ledger.record(commit_of_turn(0, admitted_at=100.5))
    assert await kept(ledger) == ["c0"]


async def test_a_failed_call_gets_no_row_and_every_reason_is_kept_once_in_order(ledger: CaptureLedger) -> None:
    for reason in ("z", "a", "z"):
        await ledger.record_failure("r1", "c0", reason)
    with pytest.raises(RecordConflictError, match="failed already"):
        await ledger.record(commit_of_turn(0))
    failures = (await ledger.manifest("r1")).failures
    assert failures == [ManifestFailure(model_call_id="c0", reason=reason) for reason in ("z", "a")]
    assert await ledger.has_rows("r1")


async def test_a_manifest_returns_what_was_recorded(ledger: CaptureLedger) -> None:
    commits = [commit_of_turn(turn) for turn in range(3)]
    for commit in commits:
        await ledger.record(commit)
    assert (await ledger.manifest("r1")).records == [commit.record for commit in commits]
    assert await kept(ledger, "other") == []
    assert not await ledger.has_rows("other")


async def test_a_parent_comes_with_all_that_a_worker_needs(ledger: CaptureLedger) -> None:
    for turn in range(3):
        await ledger.record(commit_of_turn(turn))
    match = (await ledger.resolve("r1", asked_at(3))).match
    assert match is not None
    assert match.staging_chain == ("r1/c0", "r1/c1", "r1/c2")
    assert (match.prev_len, match.chain_hash) == (30, commit_of_turn(2).record.chain_hash)
    assert match.tokens.size == 0
    assert await parent(ledger, 1) == "c0"


async def test_siblings_of_the_same_words_are_a_parent_only_if_they_are_the_same_tokens(ledger: CaptureLedger) -> None:
    await ledger.record(commit_of_turn(0))
    await ledger.record(commit_of_turn(0, call_id="b0"))
    assert await parent(ledger, 1) == "b0"
    await ledger.record(commit_of_turn(0, call_id="a0", tokens="others"))
    assert (await ledger.resolve("r1", asked_at(1))).status is UNRESOLVED


@pytest.mark.parametrize("member", ["cumulative_hash", "chain_hash"])
async def test_siblings_that_differ_in_one_hash_are_nobodys_parent(ledger: CaptureLedger, member: str) -> None:
    await ledger.record(commit_of_turn(0))
    await ledger.record(commit_of_turn(0, call_id="b0", **{member: "0" * 64}))
    assert (await ledger.resolve("r1", asked_at(1))).status is UNRESOLVED


async def test_a_turn_that_was_slipped_in_before_the_answer_hides_the_parent(ledger: CaptureLedger) -> None:
    await ledger.record(commit_of_turn(0))
    question, answer, more = asked_at(1)
    items = [question, {"role": "user", "content": "slipped in"}, answer, more]
    assert (await ledger.resolve("r1", items)).status is UNRESOLVED


@pytest.mark.parametrize("version", [0, 1])
async def test_a_row_of_another_fingerprint_version_is_no_parent(ledger: CaptureLedger, version: int) -> None:
    await ledger.record(commit_of_turn(0, fingerprint_version=version))
    assert (await ledger.resolve("r1", asked_at(1))).status is UNRESOLVED


async def test_content_that_cannot_be_hashed_is_kept_and_nothing_continues_it(ledger: CaptureLedger) -> None:
    nulls = {"output_fingerprint": None, "continuation_fingerprint": None}
    commit = commit_of_turn(0, **nulls).model_dump()
    commit["response_items"] = [{"role": "assistant", "content": 5}]
    await ledger.record(CaptureLedgerCommit(**commit))
    await ledger.record(CaptureLedgerCommit(**commit))
    assert await kept(ledger) == ["c0"]
    assert (await ledger.resolve("r1", asked_at(1))).status is UNRESOLVED
    with pytest.raises(ValueError, match="content"):
        await ledger.resolve("r1", commit["response_items"])


async def test_a_chain_that_does_not_end_with_the_call_is_refused(ledger: CaptureLedger) -> None:
    commit = commit_of_turn(1).model_copy(update={"staging_chain": ["r1/c0"]})
    with pytest.raises(ValueError, match="not with its own key 'r1/c1'"):
        await ledger.record(commit)
    assert not await ledger.has_rows("r1")


@pytest.mark.parametrize("rollout_id", ["", "a/b", "..", "a b", "é"])
async def test_bad_ids_are_refused_everywhere(ledger: CaptureLedger, rollout_id: str) -> None:
    await ledger.record(commit_of_turn(0))
    asked = [
        ledger.resolve(rollout_id, asked_at(0)),
        ledger.record_failure(rollout_id, "c", "reason"),
        ledger.manifest(rollout_id),
        ledger.has_rows(rollout_id),
        ledger.retire(["r1", rollout_id]),
        ledger.delete(["r1", rollout_id]),
    ]
    if rollout_id:
        asked.append(ledger.record(commit_of_turn(0, rollout_id)))
    for question in asked:
        with pytest.raises(ValueError, match="cannot be a rollout id"):
            await question
    assert await kept(ledger) == ["c0"]
    await ledger.record_failure("r1", "c1", "not retired")


@pytest.mark.parametrize("failure", [("", "reason"), ("c0", ""), ("c0", "\ud800")])
async def test_a_failure_says_which_call_and_why(ledger: CaptureLedger, failure: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=r"model_call_id|reason"):
        await ledger.record_failure("r1", *failure)
    assert not await ledger.has_rows("r1")


async def test_what_is_retired_is_gone_for_good_and_says_so(
    ledger: CaptureLedger, caplog: pytest.LogCaptureFixture
) -> None:
    await ledger.record(commit_of_turn(0))
    await ledger.record(commit_of_turn(0, "r2"))
    assert await ledger.retire(["r1", "never", "r1"]) == RolloutRemoval(removed=["r1"], absent=["never"])
    assert await ledger.retire(["r1"]) == RolloutRemoval(absent=["r1"])
    with caplog.at_level(logging.WARNING):
        await ledger.record(commit_of_turn(1))
        await ledger.record(commit_of_turn(0, "never"))
        await ledger.record_failure("r1", "c9", "late")
    for dropped in ("r1/c1", "never/c0", "c9"):
        assert dropped in caplog.text
    for rollout_id in ("r1", "never"):
        with pytest.raises(RolloutRetiredError, match="retired"):
            await ledger.manifest(rollout_id)
        with pytest.raises(RolloutRetiredError, match="retired"):
            await ledger.has_rows(rollout_id)
        assert (await ledger.resolve(rollout_id, asked_at(1))).match is None
        for turn in (0, 1):
            assert await admit(ledger, rollout_id=rollout_id, model_call_id="c5", items=asked_at(turn)) is None
    assert await kept(ledger, "r2") == ["c0"]


async def test_what_is_deleted_can_begin_anew(ledger: CaptureLedger) -> None:
    await ledger.record(commit_of_turn(0))
    assert await ledger.delete(["r1"]) == RolloutRemoval(removed=["r1"])
    assert await kept(ledger) == []
    assert await parent(ledger, 1) is None
    await ledger.retire(["r1"])
    assert await ledger.delete(["r1", "r1"]) == RolloutRemoval(absent=["r1"])
    await ledger.record(commit_of_turn(0, tokens="others"))
    assert await kept(ledger) == ["c0"]
    assert await parent(ledger, 1) == "c0"


async def test_one_string_is_no_list_of_ids(ledger: CaptureLedger) -> None:
    for remove in (ledger.retire, ledger.delete):
        with pytest.raises(TypeError, match="one string 'r1'"):
            await remove("r1")
    await ledger.record(commit_of_turn(0))
    assert await kept(ledger) == ["c0"]


class TestAdmission:
    async def test_a_continuation_is_admitted_behind_its_parent(self, ledger: CaptureLedger) -> None:
        for turn in range(2):
            await ledger.record(commit_of_turn(turn))
        admission = await admit(ledger, rollout_id="r1", model_call_id="c2", items=asked_at(2))
        assert admission is not None
        assert (admission.mode, admission.parent_call_id, admission.prev_len) == ("token_in", "c1", 20)
        assert list(admission.staging_chain) == ["r1/c0", "r1/c1"]
        assert admission.parent_chain_hash == commit_of_turn(1).record.chain_hash

    async def test_a_first_request_with_history_is_a_root(self, ledger: CaptureLedger) -> None:
        admission = await admit(ledger, rollout_id="r1", model_call_id="c0", items=asked_at(3))
        assert admission is not None
        assert admission.mode == "text"

    async def test_an_unknown_continuation_is_never_a_root(self, ledger: CaptureLedger) -> None:
        await ledger.record(commit_of_turn(0))
        assert await admit(ledger, rollout_id="r1", model_call_id="c9", items=asked_at(3)) is None
        assert (await ledger.manifest("r1")).failures == [
            ManifestFailure(model_call_id="c9", reason="unresolved_parent")
        ]

    async def test_a_request_that_cannot_be_hashed_is_not_captured(self, ledger: CaptureLedger) -> None:
        items = [{"role": "assistant", "content": 5}]
        assert await admit(ledger, rollout_id="r1", model_call_id="c0", items=items) is None
        assert [failure.reason for failure in (await ledger.manifest("r1")).failures] == ["unresolved_parent"]

    async def test_a_parent_without_a_chain_is_none(self, ledger: CaptureLedger) -> None:
        await ledger.record(commit_of_turn(0).model_copy(update={"staging_chain": ()}))
        assert await admit(ledger, rollout_id="r1", model_call_id="c1", items=asked_at(1)) is None
        assert len((await ledger.manifest("r1")).failures) == 1

    @pytest.mark.parametrize("kind", ["custom_tool_call", "reasoning"])
    async def test_a_history_without_words_is_no_root_once_there_are_calls(
        self, ledger: CaptureLedger, kind: str
    ) -> None:
        items = [*asked_at(0), {"type": kind}, {"role": "user", "content": "more"}]
        seeded = await admit(ledger, rollout_id="r1", model_call_id="c0", items=items)
        assert seeded is not None
        await ledger.record(commit_of_turn(0))
        assert await admit(ledger, rollout_id="r1", model_call_id="c1", items=items) is None
        assert await admit(ledger, rollout_id="r1", model_call_id="c2", items=asked_at(0)) is not None

    async def test_a_text_input_is_a_turn_that_its_continuation_has_in_any_spelling(
        self, ledger: CaptureLedger
    ) -> None:
        await ledger.record(commit_of_turn(0))
        question, *rest = asked_at(1)
        spelled = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": question["content"]}]}
        admission = await admit(ledger, rollout_id="r1", model_call_id="c1", items=[spelled, *rest])
        assert admission is not None
        assert admission.parent_call_id == "c0"
