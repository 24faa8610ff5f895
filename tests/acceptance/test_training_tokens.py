"""Exact tokens from the socket to the verdict: whatever is bad is masked with a reason, and no row is ever wrong.

The first half is the map: which test holds each rule that departs from a plain capture, and each kind of bad input. The
second half is one rollout, captured through a model server, that meets the bad input on its way.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tomllib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gym_ray.dialects import CHAT, DIALECT_BY_PATH, RESPONSES
from gym_ray.model_server.app import build_app
from gym_ray.model_server.engine import EngineRequest
from gym_ray.model_server.serving import AppServer
from gym_ray.testing.defined_tests import defined_tests
from gym_ray.testing.fake_engine import FakeEngine
from gym_ray.testing.script import ScriptedAnswer
from gym_ray.token_id_capture import (
    FileLineageResolver,
    TokenCaptureStore,
    capture_build_can_retire,
    compute_digest,
    finalize_rollout_token_capture,
)
from gym_ray.token_id_capture.call_capture import TokenCapture

TESTS = Path(__file__).parents[1]
TOKENS = "token_id_capture"

# --- the map -------------------------------------------------------------------------------------------------------

RULES: dict[str, Sequence[str]] = {
    "W16 glued lines": (
        f"{TOKENS}/test_store_crash.py::test_records_cut_anywhere_are_those_that_end_before_the_cut",
        "vectors/test_B_store.py::test_scripts",
    ),
    "W17 empty state": (
        f"{TOKENS}/test_store_crash.py::test_a_state_cut_anywhere_costs_neither_record_nor_mark",
        f"{TOKENS}/test_store_other_writer.py::test_a_state_that_a_power_cut_left_empty_does_not_lock_the_rollout",
    ),
    "W18 lost flags": (
        f"{TOKENS}/test_store.py::test_lost_flags_are_found_in_the_marks",
        f"{TOKENS}/test_store_crash.py::test_marks_cut_anywhere_are_still_marks",
    ),
    "W19 names of new files": (
        f"{TOKENS}/test_store_crash.py::test_the_first_record_of_a_rollout_outlives_a_power_cut_with_its_name",
        f"{TOKENS}/test_store_crash.py::test_what_was_acknowledged_outlives_a_power_cut",
    ),
    "W20 copies": (f"{TOKENS}/token_files/test_line_index.py::test_copies_are_left_out_and_contradictions_named",),
    "W21 non-finite log probs": (
        f"{TOKENS}/test_store.py::test_a_record_that_could_not_be_read_back_is_refused",
        f"{TOKENS}/test_call_capture.py::test_tokens_that_no_record_can_hold_mark_their_call",
    ),
    "W22 digest errors": (
        "vectors/test_B_digest.py::test_refused",
        f"{TOKENS}/test_token_arrays.py::test_what_is_no_token_id_is_refused_and_named",
    ),
    "W23 withdrawn calls": (
        f"{TOKENS}/test_store.py::test_a_withdrawn_call_leaves_the_rollout_complete",
        f"{TOKENS}/test_call_capture.py::test_a_call_that_served_nothing_leaves_its_rollout_whole",
        "model_server/test_token_calls.py::test_a_call_whose_client_got_an_error_is_withdrawn",
        "model_server/test_token_store_calls.py::test_an_error_of_the_engine_and_a_good_retry_leave_a_whole_rollout",
    ),
    "W24 captured twice": (
        f"{TOKENS}/test_call_capture.py::test_the_first_record_of_a_call_stands",
        f"{TOKENS}/test_store.py::test_a_repetition_behind_the_freeze_changes_nothing",
        "vectors/test_B_capture.py::test_other",
    ),
    "W25 put again after freeze": (f"{TOKENS}/test_store.py::test_a_repetition_behind_the_freeze_changes_nothing",),
    "W26 stored digests": (
        f"{TOKENS}/building/test_proving.py::test_a_whole_record_with_a_forged_digest_makes_no_row",
        f"{TOKENS}/building/test_chains.py::test_a_chain_is_held_against_every_recorded_prompt_and_generation",
    ),
    "W27 lost parents": (
        f"{TOKENS}/building/test_linking.py::test_a_lost_call_is_not_taken_for_tool_text",
        f"{TOKENS}/building/test_linking.py::test_a_call_behind_a_broken_delta_is_not_linked_past_it",
    ),
    "W28 retries of first calls": (
        f"{TOKENS}/test_builder.py::test_a_first_call_made_again_is_one_root",
        f"{TOKENS}/test_builder.py::test_equal_retries_are_interchangeable",
    ),
    "W29 second finalisation": (
        f"{TOKENS}/test_delivery.py::test_a_second_finalisation_never_retires_what_the_first_masked",
    ),
    "W30 seeded roots": (
        f"{TOKENS}/test_call_capture.py::test_a_rollout_that_begins_with_examples_is_whole",
        f"{TOKENS}/resolution/test_resolvers.py::TestSeededRoots::test_a_first_request_with_examples_is_a_root",
        f"{TOKENS}/resolution/test_resolvers.py::TestSeededRoots::test_not_if_there_is_any_evidence",
        f"{TOKENS}/resolution/test_memory_resolver.py::TestSeededRoots::test_a_first_request_with_examples_is_a_root",
    ),
    "W31 empty completions": (
        f"{TOKENS}/resolution/test_call_index.py::TestEmptyAnswers::test_going_on_from_the_empty_answer_continues_it",
    ),
    "W32 gaps": (
        f"{TOKENS}/resolution/test_call_index.py::TestGaps::test_nothing_may_stand_before_the_answer",
        f"{TOKENS}/resolution/test_call_index.py::TestGaps::test_nothing_may_stand_inside_the_answer",
    ),
    "W33 thin context digest": (
        f"{TOKENS}/resolution/test_call_index.py::TestStrictDigest::test_what_the_digest_leaves_out_counts",
        f"{TOKENS}/resolution/test_call_index.py::TestTextInput::test_nothing_else_does",
        f"{TOKENS}/hashing/test_strict_items.py::test_what_the_digest_leaves_out_is_told_apart",
    ),
    "W34 echoed thinking": (
        f"{TOKENS}/test_fingerprint.py::test_thinking_does_not_change_the_fingerprint_but_the_digest",
        "vectors/test_B_lineage.py::test_scenario",
    ),
    "W35 failed prefix proof": (
        "vectors/test_B_prefix_supply.py::test_a_served_call_without_proof_marks_its_rollout",
        f"{TOKENS}/test_call_capture.py::test_a_prefix_that_is_only_claimed_is_kept_and_marked",
        f"{TOKENS}/test_call_capture.py::test_a_missing_proof_refuses_the_call_where_that_is_wanted",
    ),
    "W36 lock files": (
        f"{TOKENS}/token_files/test_rollout_locks.py::test_the_lock_of_a_file_that_lost_its_name_does_not_count",
        f"{TOKENS}/test_store.py::test_unknown_rollouts_are_asked_about_without_a_trace",
        f"{TOKENS}/resolution/test_resolvers.py::TestFiles::test_looking_up_creates_nothing",
    ),
    "W37 ids that end in a line feed": (
        "vectors/test_B_store.py::test_correlation",
        f"{TOKENS}/test_store.py::test_an_id_that_names_no_file_is_refused_everywhere",
    ),
    "W38 mask limit": (
        "rollouts/test_collection.py::test_a_run_ends_when_too_many_rollouts_cannot_be_trained_on",
        f"{TOKENS}/test_mask_limit.py::test_a_late_collapse_is_seen_in_the_window_long_before_the_whole_run_shows_it",
    ),
    "W39 damage": (
        f"{TOKENS}/test_store.py::test_damage_is_named_and_hides_nothing",
        f"{TOKENS}/test_assembly.py::test_damage_in_a_file_masks_its_rollout_and_names_itself",
    ),
    "W40 ties": (f"{TOKENS}/test_builder.py::test_the_branch_with_most_generated_tokens_is_main",),
}

ANSWERS_HERE = "acceptance/test_training_tokens.py::test_bad_tokens_of_an_answer_cost_its_call_and_not_the_client"
FILES_HERE = "acceptance/test_training_tokens.py::test_files_that_say_too_little_mask_their_rollout"
GOOD_HERE = "acceptance/test_training_tokens.py::test_files_that_say_enough_cost_nothing"
NO_RECORD = (
    f"{TOKENS}/token_files/test_line_index.py::test_a_record_that_is_none_of_this_rollout_is_named_with_its_call"
)
NO_SUM = f"{TOKENS}/adapters/test_vllm.py::test_what_does_not_add_up_is_not_used"

BAD_INPUT: dict[str, Sequence[str]] = {
    "wrong types": (ANSWERS_HERE, FILES_HERE, "vectors/test_B_records.py::test_construct"),
    "wrong lengths": (ANSWERS_HERE, FILES_HERE, NO_SUM, NO_RECORD),
    "newer and older schemas": (FILES_HERE, f"{TOKENS}/test_records.py::test_the_first_broken_rule_is_named"),
    "non-finite log probs": (ANSWERS_HERE, FILES_HERE, NO_SUM, "vectors/test_B_records.py::test_non_finite_log_probs"),
    "ids of 2**64 and more": (ANSWERS_HERE, FILES_HERE, NO_SUM, "vectors/test_B_digest.py::test_refused"),
    "negative ids": (ANSWERS_HERE, FILES_HERE, NO_SUM, NO_RECORD),
    "forged digests": (
        FILES_HERE,
        f"{TOKENS}/test_builder.py::test_a_damaged_rollout_never_gives_an_unmasked_wrong_row",
        f"{TOKENS}/resolution/test_resolvers.py::TestFiles::test_a_forged_record_is_nobodys_parent",
    ),
    "duplicated lines": (GOOD_HERE, FILES_HERE, *RULES["W20 copies"]),
    "an empty or damaged state": (GOOD_HERE, *RULES["W17 empty state"]),
    "two carriers": (ANSWERS_HERE, f"{TOKENS}/adapters/test_vllm.py::test_two_carriers_have_to_agree"),
    "partial carriers": (ANSWERS_HERE, "vectors/test_B_response_shapes.py::test_extract"),
    "a dropped parent": (FILES_HERE, *RULES["W27 lost parents"]),
}


def test_every_rule_has_its_test() -> None:
    assert [rule.partition(" ")[0] for rule in RULES] == [f"W{number}" for number in range(16, 41)]


@pytest.mark.parametrize("held", [*RULES, *BAD_INPUT])
def test_what_the_map_names_is_there(held: str) -> None:
    for test in (RULES | BAD_INPUT)[held]:
        file, _, name = test.partition("::")
        assert name in defined_tests(TESTS / file), test


VECTORS = sorted(path.stem for path in (TESTS / "vectors").glob("B_*.json"))


@pytest.mark.parametrize("name", VECTORS)
def test_every_section_of_a_vector_file_is_read(name: str, pytestconfig: pytest.Config) -> None:
    adapter = (TESTS / "vectors" / f"test_{name}.py").read_text("utf-8")
    document = json.loads((pytestconfig.getoption("--vectors") / f"{name}.json").read_text("utf-8"))
    for section in document:
        is_all_there_is = section == "cases" and "case: dict" in adapter
        is_read = f'"{section}"' in adapter or f"def test_{section}(" in adapter or is_all_there_is
        is_a_note = section.endswith("_note")
        assert is_read or is_a_note, f"nobody reads {section}"
    for rule, departure in tomllib.loads((TESTS / "vectors/departures.toml").read_text("utf-8")).items():
        if departure["file"] == f"{name}.json":
            assert f'"{rule}"' in adapter or f'rule["file"] == "{name}.json"' in adapter, f"nobody reads {rule}"


# --- one rollout, through a server -----------------------------------------------------------------------------------

PATH_OF = {dialect: path for path, dialect in DIALECT_BY_PATH.items()}
ROLLOUT = "0-0"
TURNS = 3
FAULT_AT = 1  # neither the first call nor the last one


def sampled(turn: int) -> list[int]:
    return [100 + turn, 200 + turn]


def prompt(turn: int) -> list[int]:
    """What came before: each call's prompt and tokens, and a token for what its user said next."""
    ids = [1, 2]
    for before in range(turn):
        ids += [*sampled(before), 10 + before]
    return ids


TRUTH = [*prompt(TURNS - 1), *sampled(TURNS - 1)]
LOSS = [token >= 100 for token in TRUTH]


def carried(turn: int = FAULT_AT, **changed: Any) -> dict[str, Any]:
    fields = {"prompt_token_ids": prompt(turn), "generation_token_ids": sampled(turn)}
    members = {**fields, "generation_log_probs": [-0.25, -0.5], **changed}
    return {name: value for name, value in members.items() if value is not ...}


def answer(dialect: str, turn: int, *carriers: dict[str, Any]) -> bytes:
    """An answer as a patched worker gives it, with an item a carrier."""
    text, head = f"answer {turn}", {"id": f"resp-{turn}", "model": "m"}
    if dialect == CHAT:
        messages = [{"role": "assistant", "content": text, **fields} for fields in carriers]
        choices = [{"index": at, "finish_reason": "stop", "message": said} for at, said in enumerate(messages)]
        return json.dumps({**head, "choices": choices}).encode()
    content = [{"type": "output_text", "text": text}]
    output = [{"type": "message", "role": "assistant", "content": content, **fields} for fields in carriers]
    return json.dumps({**head, "object": "response", "status": "completed", "output": output}).encode()


BAD_ANSWERS: dict[str, tuple[Sequence[dict[str, Any]], str]] = {
    "wrong_types": ([carried(prompt_token_ids="1,2")], "malformed_tokens"),
    "nested": ([carried(generation_token_ids=[[1], [2]])], "malformed_tokens"),
    "fractions": ([carried(generation_token_ids=[1.5, 2])], "malformed_tokens"),
    "texts": ([carried(generation_log_probs=["-1", "-2"])], "malformed_tokens"),
    "wrong_lengths": ([carried(generation_log_probs=[-1])], "length_mismatch"),
    "not_a_number": ([carried(generation_log_probs=[float("nan"), -1])], "non_finite_log_prob"),
    "infinite": ([carried(generation_log_probs=[float("-inf"), -1])], "non_finite_log_prob"),
    "null": ([carried(generation_log_probs=[None, -1])], "malformed_tokens"),
    "two_to_the_64": ([carried(generation_token_ids=[2**64, 1])], "malformed_tokens"),
    "negative": ([carried(prompt_token_ids=[1, -2])], "malformed_tokens"),
    "no_prompt": ([carried(prompt_token_ids=...)], "ids_missing"),
    "no_log_probs": ([carried(generation_log_probs=None)], "ids_missing"),
    "no_tokens": ([{}], "ids_missing"),
    "two_carriers": ([carried(), carried()], "several_carriers"),
}


@dataclass
class Rollout:
    """A client of a model server with its token store."""

    http: httpx.AsyncClient
    store: TokenCaptureStore
    dialect: str

    async def play(self) -> list[httpx.Response]:
        history: list[dict[str, Any]] = []
        heard = []
        for turn in range(TURNS):
            history.append({"role": "user", "content": f"question {turn}"})
            body = {"messages": history} if self.dialect == CHAT else {"input": history}
            path = f"/ng-rollout/{ROLLOUT}/training-token-capture{PATH_OF[self.dialect]}"
            heard.append(await self.http.post(path, json=body))
            history.append({"role": "assistant", "content": f"answer {turn}"})
        return heard


@asynccontextmanager
async def rollout(
    directory: Path, dialect: str, faulty: Sequence[dict[str, Any]] | None = None, *, delta_records: bool = True
) -> AsyncIterator[Rollout]:
    turns = iter(range(TURNS))

    def script(request: EngineRequest) -> ScriptedAnswer:
        turn = next(turns)
        carriers = [carried(turn)] if faulty is None or turn != FAULT_AT else faulty
        return ScriptedAnswer([answer(dialect, turn, *carriers)])

    store = TokenCaptureStore(directory)
    capture = TokenCapture(store, FileLineageResolver(store), delta_records=delta_records, retry_interval_s=0.01)
    server = AppServer(build_app(FakeEngine(script=script), server_name="m", capture=None, tokens=capture))
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=30) as http:
            yield Rollout(http, store, dialect)
            assert await capture.settled(ROLLOUT, 20)
    finally:
        await server.stop(grace_s=5)
        await capture.aclose()


async def verdict(directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Finalise the rollout from its files; return its record and its build."""
    store = TokenCaptureStore(directory)
    record: dict[str, Any] = {"_ng_rollout_id": ROLLOUT, "response": {"id": f"resp-{TURNS - 1}", "model": "m"}}
    build = await finalize_rollout_token_capture(record, store, rows="all")
    await store.close()
    assert build is not None
    return record, build


def assert_no_row_is_wrong(record: dict[str, Any]) -> None:
    """What may be learned from is the truth: a beginning of it, with loss on sampled tokens alone."""
    for row in record.get("_ng_training_rows", ()):
        if not row["mask_sample"]:
            length = len(row["token_ids"])
            assert (row["token_ids"], row["loss_mask"]) == (TRUTH[:length], LOSS[:length])
            assert len(row["policy_log_probs"]) == sum(LOSS[:length])


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES])
async def test_a_good_rollout_is_one_row_of_the_very_tokens(tmp_path: Path, dialect: str) -> None:
    async with rollout(tmp_path, dialect) as one:
        heard = await one.play()
    assert [response.status_code for response in heard] == [200] * TURNS
    record, build = await verdict(tmp_path)
    (row,) = record["_ng_training_rows"]
    assert (row["token_ids"], row["loss_mask"], row["policy_log_probs"]) == (TRUTH, LOSS, [-0.25, -0.5] * TURNS)
    assert ("mask_sample" in record, build["mask_reasons"], capture_build_can_retire(build)) == (False, [], True)


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES])
@pytest.mark.parametrize("name", BAD_ANSWERS)
async def test_bad_tokens_of_an_answer_cost_its_call_and_not_the_client(
    tmp_path: Path, name: str, dialect: str
) -> None:
    carriers, reason = BAD_ANSWERS[name]
    async with rollout(tmp_path, dialect, carriers) as one:
        heard = await one.play()
    assert [response.status_code for response in heard] == [200] * TURNS
    for turn, response in enumerate(heard):
        assert f"answer {turn}" in response.text
        assert "token_ids" not in response.text
    if dialect == CHAT and len(carriers) > 1:
        reason = "several_choices"
    record, build = await verdict(tmp_path)
    assert (record["mask_sample"], capture_build_can_retire(build)) == (True, False)
    assert {"capture_incomplete", reason} <= set(build["mask_reasons"])
    assert build["metrics"]["capture_problems"] == {reason: 1}
    assert_no_row_is_wrong(record)


# --- the same rollout, its files spoilt ------------------------------------------------------------------------------

Spoil = Callable[[Path], None]


def lines(change: Callable[[list[bytes]], list[bytes]]) -> Spoil:
    def spoil(directory: Path) -> None:
        path = directory / f"{ROLLOUT}.tokens.jsonl"
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))

    return spoil


def member(**changed: Any) -> Spoil:
    """Change members of the call in the middle."""

    def change(found: list[bytes]) -> list[bytes]:
        record = json.loads(found[FAULT_AT]) | changed
        return [*found[:FAULT_AT], json.dumps(record).encode() + b"\n", *found[FAULT_AT + 1 :]]

    return lines(change)


def twice(**changed: Any) -> Spoil:
    def change(found: list[bytes]) -> list[bytes]:
        return [*found, json.dumps(json.loads(found[FAULT_AT]) | changed).encode() + b"\n"]

    return lines(change)


def state(data: bytes) -> Spoil:
    return lambda directory: (directory / f"{ROLLOUT}.tokens.state.json").write_bytes(data) and None


MADE_GOOD: dict[str, Spoil] = {
    "a line twice": twice(),
    "a line twice, later": twice(created_at=9e9),
    "an empty state": state(b""),
    "a cut state": state(b'{"froz'),
    "a state of another kind": state(b"[]"),
    "a state of wrong types": state(b'{"frozen": 1, "version": "x"}'),
    "no last line feed": lines(lambda found: [*found[:-1], found[-1].rstrip()]),
    "blank lines": lines(lambda found: [b"\n", *found, b"\n\n"]),
}
UNPROVED = "the call that ended the rollout rests on one that is not proved, and the metrics say which way"
MASKED: dict[str, tuple[Spoil, set[str]]] = {
    "wrong types": (member(prompt_token_ids="12"), {"invalid_record"}),
    "items that are none": (member(output_items=[5]), {"invalid_record"}),
    "wrong lengths": (member(generation_log_probs=[-1.0]), {"invalid_record"}),
    "a newer schema": (member(schema_version=2), {"invalid_record"}),
    "an older schema": (member(schema_version=0), {"invalid_record"}),
    "not a number": (member(generation_log_probs=[float("nan"), -1.0]), {"invalid_record"}),
    "infinite": (member(generation_log_probs=[float("-inf"), -1.0]), {"invalid_record"}),
    "2**64": (member(generation_token_ids=[2**64, 1]), {"invalid_record"}),
    "negative ids": (member(generation_token_ids=[-1, 1]), {"invalid_record"}),
    "another rollout's": (member(rollout_id="0-1"), {"invalid_record"}),
    "a forged digest": (member(digest=compute_digest([1, 2, 3])), {UNPROVED}),
    "a forged length": (member(cum_len=4), {UNPROVED}),
    "other tokens": (member(generation_token_ids=[7, 8]), {UNPROVED}),
    "another prompt": (member(prompt_token_ids=[7]), {UNPROVED}),
    "a prompt written anew": (
        member(
            prompt_token_ids=[9, 9],
            prompt_is_delta=False,
            cum_len=4,
            digest=compute_digest([9, 9, *sampled(FAULT_AT)]),
        ),
        {UNPROVED},
    ),
    "a forged parent": (member(parent_call_id="nobody"), {UNPROVED}),
    "another record of a call": (twice(generation_token_ids=[7, 8]), {"conflicting_record"}),
    "a damaged line": (lines(lambda found: [found[0], b"{\n", *found[2:]]), {"damaged_line", "call_without_record"}),
    "a cut last line": (lines(lambda found: [*found[:-1], found[-1][:-9]]), {"call_without_record"}),
    "a dropped parent": (lines(lambda found: [found[0], found[2]]), {"call_without_record", UNPROVED}),
    "a dropped root": (lines(lambda found: found[1:]), {"call_without_record"}),
    "nothing": (lines(lambda found: []), {"call_without_record", "no_token_records"}),
}


@pytest.fixture(scope="module", params=[True, False], ids=["deltas", "whole_prompts"])
def good(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The files of a good rollout."""
    directory = tmp_path_factory.mktemp("good")

    async def play() -> None:
        async with rollout(directory, CHAT, delta_records=request.param) as one:
            await one.play()

    asyncio.run(play())
    return directory


@pytest.fixture
def files(tmp_path: Path, good: Path) -> Path:
    """A copy of them, to be spoilt."""
    return shutil.copytree(good, tmp_path / "files")


@pytest.mark.parametrize("name", MADE_GOOD)
async def test_files_that_say_enough_cost_nothing(files: Path, name: str) -> None:
    MADE_GOOD[name](files)
    record, build = await verdict(files)
    (row,) = record["_ng_training_rows"]
    assert (row["mask_sample"], row["token_ids"], row["loss_mask"]) == (False, TRUTH, LOSS)
    assert ("mask_sample" in record, build["mask_reasons"], capture_build_can_retire(build)) == (False, [], True)


@pytest.mark.parametrize("name", MASKED)
async def test_files_that_say_too_little_mask_their_rollout(files: Path, name: str) -> None:
    spoil, reasons = MASKED[name]
    spoil(files)
    before = (files / f"{ROLLOUT}.tokens.jsonl").read_bytes()
    record, build = await verdict(files)
    assert (record["mask_sample"], capture_build_can_retire(build)) == (True, False)
    told = set(build["mask_reasons"])
    if build["metrics"].get("parent_link_failures") and told & {"terminal_broken", "terminal_not_captured"}:
        told.add(UNPROVED)
    assert reasons <= told
    assert_no_row_is_wrong(record)
    assert before.startswith((files / f"{ROLLOUT}.tokens.jsonl").read_bytes())  # evidence stays, but for a torn end
