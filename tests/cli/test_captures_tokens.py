"""``gym-ray captures tokens`` shows what a row is made of and why it is masked, and changes nothing."""

from __future__ import annotations

import asyncio
import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from gym_ray.cli.app import app
from gym_ray.cli.token_report import read_tokens
from gym_ray.cli.token_view import print_tokens
from gym_ray.errors import CaptureError, RolloutIdError
from gym_ray.testing.token_source import call_entry
from gym_ray.token_id_capture.records import ParentResolutionStatus, TokenEntry
from gym_ray.token_id_capture.store import TokenCaptureStore

STAMPS = {"ended_by": "eos", "version_start": 3, "version_end": 4}
SPANS = {"constrained": True, "weight_spans": [{"version": "v9", "start": 0, "end": 1}]}
C1 = call_entry("c1", range(40), [100, 101, 102], model="m", response_id="resp_1", gym_ray=STAMPS)
C2 = call_entry("c2", range(200, 230), [103], C1, gym_ray=SPANS, prefix_requested=True, prefix_supplied=True)
C2B = call_entry("c2b", range(200, 230), [104], C1)
C3 = call_entry("c3", [7], [8], C2)
C3B = call_entry("c3b", [9], [10], C2)
EMPTY = call_entry("empty", [1], [], C3)
LOST = call_entry("lost", [5, 6], [7], status=ParentResolutionStatus.UNRESOLVED, parent_resolution_reason="no_match")


def stored(directory: Path, *entries: TokenEntry) -> Path:
    store = TokenCaptureStore(directory)
    for entry in entries:
        store.append(entry)
    store.shut_down()
    return directory


def run(*arguments: object) -> str:
    command = ["captures", "tokens", *map(str, arguments)]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def lines(output: str) -> list[str]:
    return [" ".join(line.rstrip("─").split()) for line in output.splitlines()]


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.iterdir()}


def test_a_chain_shows_its_calls_with_every_stretch_of_tokens(tmp_path: Path) -> None:
    assert lines(run(stored(tmp_path, C1, C2), "3-1")) == [
        "rollout 3-1 calls: 2 open, more calls may come trainable",
        "chain main 74 tokens: 40 prompt, 30 tool text, 4 policy",
        "call c1 begins a conversation model m ended by eos response resp_1",
        "weights 40:43 3 or 4",
        "prompt 0:40 40 0 1 2 3 4 5 6 7 … 37 38 39",
        "policy 40:43 3 100 101 102 log prob mean -0.5 min -0.75",
        "call c2 continues c1 prefix reused grammar bounded the choice",
        "weights 73:74 v9",
        "tool text 43:73 30 200 201 202 203 204 205 206 207 … 227 228 229",
        "policy 73:74 1 103 log prob mean -0.25 min -0.25",
    ]


def test_full_shows_every_token_and_every_log_prob(tmp_path: Path) -> None:
    shown = run(stored(tmp_path, C1, C2), "3-1", "--full")
    assert " ".join(map(str, range(40))) in shown
    assert "100 (-0.25) 101 (-0.5) 102 (-0.75)" in shown
    assert "…" not in shown


def test_branches_show_what_they_add_and_left_out_calls_why(tmp_path: Path) -> None:
    output = run(stored(tmp_path, C1, C2, C2B, C3, C3B, EMPTY, LOST), "3-1")
    assert "masked unresolved_parent_calls, several_roots, several_chains" in output
    assert "--terminal CALL_ID does it here" in output
    main, fragment, branch, left_out = re.split("\n(?:chain|in no chain)", output)[1:]
    assert "call c2  continues c1" in main
    assert "masked parent_unresolved" in fragment
    assert "call lost  parent not found (no_match)" in fragment
    assert "its first 74 tokens are those of chain main" in branch
    assert "call c3b" in branch
    assert "call c1" not in branch
    assert lines(left_out)[1:] == [
        "call c2b continues c1",
        "another call with the same prompt counts 73 prompt, 1 policy",
        "call empty continues c3",
        "it generated nothing 77 prompt, 0 policy",
    ]


def test_the_last_call_can_be_named(tmp_path: Path) -> None:
    directory = stored(tmp_path, C1, C2, C3, C3B)
    assert "masked several_chains" in run(directory, "3-1")
    named = run(directory, "3-1", "--terminal", "c3b")
    assert "trainable" in named
    assert named.index("call c3b") < named.index("chain branch-0") < named.index("call c3 ")


async def spoiled(directory: Path) -> Path:
    await asyncio.to_thread(stored, directory, C1, C2)
    store = TokenCaptureStore(directory)
    await store.begin_call("3-1", "gone")
    await store.end_call("3-1", "odd", "untrainable", "usage_mismatch: 3 ids, usage says 5")
    await store.close()
    path = directory / "3-1.tokens.jsonl"
    path.write_bytes(b"damaged\n" + path.read_bytes())
    return directory


async def test_problems_of_a_capture_are_named_with_their_calls(tmp_path: Path) -> None:
    output = await asyncio.to_thread(run, await spoiled(tmp_path), "3-1")
    assert "masked capture_incomplete, damaged_line, usage_mismatch, call_without_record" in output
    assert "problem usage_mismatch call odd 3 ids, usage says 5" in output
    assert "problem call_without_record call gone" in output
    assert "problem damaged_line" in output
    assert "call c2  continues c1" in output
    assert "--terminal" not in output


async def test_nothing_is_frozen_created_or_changed(tmp_path: Path) -> None:
    directory = await spoiled(tmp_path)
    (directory / "3-1.tokens.lock").unlink()
    before = contents(directory)
    await asyncio.to_thread(run, directory, "3-1")
    await asyncio.to_thread(run, directory, "3-1", "--json")
    assert contents(directory) == before


def test_json_is_one_document_of_rows(tmp_path: Path) -> None:
    output = run(stored(tmp_path, C1, C2, C2B, C3, C3B), "3-1", "--json", "--terminal", "c3")
    document = json.loads(output)
    assert output.count("\n") == 1
    assert (document["rollout_id"], document["mask_sample"], document["reasons"]) == ("3-1", False, [])
    assert document["quarantined"] == ["c2b"]
    assert [call["model_call_id"] for call in document["calls"]] == ["c1", "c2", "c2b", "c3", "c3b"]
    assert document["calls"][0]["gym_ray"] == STAMPS
    main, branch = document["rows"]
    assert main["token_ids"] == [*range(40), 100, 101, 102, *range(200, 230), 103, 7, 8]
    assert [at for at, carries_loss in enumerate(main["loss_mask"]) if carries_loss] == [40, 41, 42, 73, 75]
    assert main["policy_log_probs"] == [-0.25, -0.5, -0.75, -0.25, -0.25]
    assert [span["kind"] for span in main["spans"]] == ["prompt", "policy", *["interstitial", "policy"] * 2]
    assert main["weight_spans"][-1] == {"version": "v9", "start": 73, "end": 74}
    assert (branch["shared_prefix"], branch["shared_with"], sum(branch["loss_mask"])) == (74, "main", 1)


def test_a_rollout_without_a_buildable_call_says_why(tmp_path: Path) -> None:
    output = run(stored(tmp_path, call_entry("e", [1, 2], [])), "3-1")
    assert "masked build_failed" in output
    assert "error build_failed: ValueError: no chain was built" in output
    assert "it generated nothing  2 prompt, 0 policy" in output


async def test_a_frozen_rollout_says_so_and_a_retired_one_where_its_tokens_are(tmp_path: Path) -> None:
    await asyncio.to_thread(stored, tmp_path, C1)
    store = TokenCaptureStore(tmp_path)
    snapshot = await store.freeze("3-1")
    assert "calls: 1  frozen  trainable" in await asyncio.to_thread(run, tmp_path, "3-1")
    assert await store.drop("3-1", snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    await store.close()
    with pytest.raises(CaptureError, match=r"rollout 3-1 were handed over and removed; .* response\.output"):
        read_tokens(tmp_path, "3-1")


def test_an_unreadable_state_hides_no_record(tmp_path: Path) -> None:
    stored(tmp_path, C1)
    (tmp_path / "3-1.tokens.state.json").write_bytes(b"")
    assert "calls: 1  open" in run(tmp_path, "3-1")


def test_an_unknown_rollout_is_told_which_there_are(tmp_path: Path) -> None:
    others = [call_entry("c", [1], [2], rollout_id=f"{n}-0") for n in range(9)]
    stored(tmp_path, *others, call_entry("c", [1], [2], rollout_id="5-1-a1"))
    with pytest.raises(CaptureError, match=r"no token capture of rollout 5-1; there are 5-1-a1, 0-0, .* and 2 more"):
        read_tokens(tmp_path, "5-1")


def test_a_directory_without_tokens_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"nor of any other; name the token_id_capture\.dir"):
        read_tokens(tmp_path, "3-1")
    (tmp_path / "3-1.capture.jsonl").touch()
    with pytest.raises(CaptureError, match=r"it holds model calls alone, which `gym-ray captures show` shows"):
        read_tokens(tmp_path, "3-1")
    assert [path.name for path in tmp_path.iterdir()] == ["3-1.capture.jsonl"]


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="missing: not a directory"):
        read_tokens(tmp_path / "missing", "3-1")
    assert not (tmp_path / "missing").exists()
    with pytest.raises(RolloutIdError, match=r"'\.\./x'"):
        read_tokens(tmp_path, "../x")
    with pytest.raises(CaptureError, match="rollout 3-1 has no call 'zz'; there are c1, c2"):
        read_tokens(stored(tmp_path, C1, C2), "3-1", "zz")


def test_kinds_of_tokens_have_colours_where_the_terminal_has(tmp_path: Path) -> None:
    def printed(**terminal: Any) -> str:
        target = StringIO()
        report = read_tokens(directory, "3-1")
        print_tokens(report, full=False, console=Console(file=target, width=200, highlight=False, **terminal))
        return target.getvalue()

    directory = stored(tmp_path, C1, C2)
    coloured = printed(force_terminal=True, color_system="standard")
    assert "\x1b[34mprompt" in coloured
    assert "\x1b[36mtool text" in coloured
    assert "\x1b[32mpolicy" in coloured
    assert "\x1b[" not in printed()


def test_markup_in_names_is_text(tmp_path: Path) -> None:
    entry = call_entry("[red]c", [1], [2], model="[bold]m", response_id="[/]")
    output = run(stored(tmp_path, entry), "3-1")
    assert "call [red]c  begins a conversation  model [bold]m  response [/]" in output


def test_the_ledger_of_staged_calls_is_named_with_the_commands_that_show_it(tmp_path: Path) -> None:
    (tmp_path / "3-1.lineage.jsonl").write_text("{}\n")
    with pytest.raises(
        CaptureError, match="it is the ledger of a run whose inference workers keep the tokens"
    ) as caught:
        run(tmp_path, "3-1")
    assert f"`gym-ray staging manifest {tmp_path} 3-1` shows its calls" in str(caught.value)
    assert "`gym-ray staging show WHERE KEY`" in str(caught.value)
