"""``gym-ray staging`` shows what a store holds, puts it together, and retires what a manifest names."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gym_ray.cli.app import app
from gym_ray.errors import (
    CaptureError,
    ForeignKeyError,
    InputError,
    RolloutIdError,
    RolloutRetiredError,
    SettingsError,
    StagedCallMissingError,
    StorageError,
)
from gym_ray.testing.staged_rollout import StagedRollout
from gym_ray.testing.token_source import call_entry
from gym_ray.token_id_capture.staging import (
    CaptureLedgerCommit,
    FileCaptureLedger,
    RolloutManifest,
    StagedCallRecord,
)
from gym_ray.token_id_capture.staging.parquet import (
    ParquetStagingSink,
    ParquetStagingSource,
    ParquetTokenSink,
    ParquetTokenSource,
)


def run(*arguments: object, code: int = 0) -> str:
    command = ["staging", *map(str, arguments)]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, command, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def run_json(*arguments: object, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code))


def stage(root: Path) -> tuple[StagedRollout, dict[str, str]]:
    """Stage a root, a child with media and extras, and a root of another rollout; each in a segment of its own."""
    rollout = StagedRollout("0-0")
    rollout.add("c1", [1, 2], [3])
    rollout.add("c2", [4], [5, 6], parent="c1", extras={"media_spans": [[0, 1]], "note": "[bold]☃"})
    other = StagedRollout("0-1").add("d1", [1], [2])
    keys = {}
    with ParquetStagingSink(root) as sink:
        for record in (*rollout.records.values(), other):
            media = {"pixels": np.zeros((2, 3), np.float32), "ids": [b"a"]} if record.model_call_id == "c2" else None
            result = sink.stage(record, attachments=media)
            keys[record.model_call_id] = str(result.staging_key)
    return rollout, keys


def manifest(rollout: StagedRollout, keys: dict[str, str], path: Path) -> Path:
    rows = [row.model_copy(update={"staging_key": keys[row.model_call_id]}) for row in rollout.rows]
    path.write_text(RolloutManifest(rollout_id=rollout.rollout_id, records=rows).model_dump_json())
    return path


def test_a_store_is_summed_up(tmp_path: Path) -> None:
    stage(tmp_path)
    text = run("show", tmp_path)
    assert "default" in text
    assert "calls" in text
    found = run_json("show", tmp_path)
    (segments,) = found["segments"]
    assert (segments["partition"], segments["kind"], segments["segments"], segments["writers"]) == (
        "default",
        "calls",
        3,
        1,
    )
    assert segments["bytes"] == sum(path.stat().st_size for path in tmp_path.glob("default/*/*.parquet"))
    assert (found["retirements"], found["frozen"], found["unfinished_compactions"]) == (0, 0, 0)
    assert found["place"] == str(tmp_path)


def test_calls_are_listed_with_keys_that_work(tmp_path: Path) -> None:
    rollout, keys = stage(tmp_path)
    listed = run_json("show", tmp_path, "--calls")
    assert [(call["rollout_id"], call["model_call_id"], call["attachments"]) for call in listed] == [
        ("0-0", "c1", 0),
        ("0-0", "c2", 3),
        ("0-1", "d1", 0),
    ]
    assert [call["key"] for call in listed] == [keys["c1"], keys["c2"], keys["d1"]]
    run("compact", tmp_path, "--delay-s", 0)
    after = run_json("show", tmp_path, "--calls")
    assert [call["model_call_id"] for call in after] == ["c1", "c2", "d1"]
    with ParquetStagingSource(tmp_path) as source:
        found = source.fetch([call["key"] for call in after[:2]])
    assert [snapshot.digest for snapshot in found] == [record.digest for record in rollout.records.values()]
    assert [call["key"] for call in after] == [keys["c1"], keys["c2"], keys["d1"]]
    assert keys["c1"] in run("show", tmp_path, "--calls")


def test_a_key_stays_the_one_that_was_handed_out_however_often_its_call_is_moved(tmp_path: Path) -> None:
    _, keys = stage(tmp_path)
    run("compact", tmp_path, "--delay-s", 0)
    record = StagedRollout("0-2").add("e1", [1], [2])
    with ParquetStagingSink(tmp_path) as one, ParquetStagingSink(tmp_path) as other:
        handed_out = {one.stage(record).staging_key, other.stage(record).staging_key}
    assert len([call for call in run_json("show", tmp_path, "--calls") if call["model_call_id"] == "e1"]) == 2
    run("compact", tmp_path, "--delay-s", 0)
    run("compact", tmp_path, "--delay-s", 0)
    listed = run_json("show", tmp_path, "--calls")
    assert [call["key"] for call in listed if call["model_call_id"] != "e1"] == [keys["c1"], keys["c2"], keys["d1"]]
    found = [key for call in listed if call["model_call_id"] == "e1" for key in (call["key"], *call["other_keys"])]
    assert set(found) == handed_out
    lines = [line.split() for line in run("show", tmp_path, "--calls").splitlines()]
    assert {line[-1] for line in lines if "e1" in line} == handed_out
    with ParquetStagingSource(tmp_path) as source:
        assert [source.fetch([key])[0].model_call_id for key in found] == ["e1", "e1"]


@pytest.mark.parametrize("columns", ["20", "80"])
def test_no_line_is_folded(tmp_path: Path, columns: str) -> None:
    _, keys = stage(tmp_path)
    command = ["staging", "show", str(tmp_path)]
    shown = CliRunner(env={"COLUMNS": columns}).invoke(app, [*command, "--calls"], catch_exceptions=False).output
    lines = [line.split() for line in shown.splitlines()]
    assert [(line[1], line[-1]) for line in lines[1:]] == [("c1", keys["c1"]), ("c2", keys["c2"]), ("d1", keys["d1"])]
    one = CliRunner(env={"COLUMNS": columns}).invoke(app, [*command, keys["c2"]], catch_exceptions=False).output
    assert keys["c2"] in one.splitlines()
    survey = CliRunner(env={"COLUMNS": columns}).invoke(app, command, catch_exceptions=False).output
    assert str(tmp_path) in survey.splitlines()[0]


def test_one_call_is_shown(tmp_path: Path) -> None:
    rollout, keys = stage(tmp_path)
    text = run("show", tmp_path, keys["c2"])
    for part in ("0-0", "c2", "token_in", "[bold]☃", "pixels", "float32 2x3", rollout.records["c2"].chain_hash):
        assert part in text
    document = run_json("show", tmp_path, keys["c2"])
    assert document["token_ids_delta"] == [4, 5, 6]
    sampled = rollout.records["c2"].generation_log_probs_delta.tolist()[1:]
    assert (document["generated"], document["mean_log_prob"]) == (2, sum(sampled) / 2)
    assert f"mean_log_prob    {document['mean_log_prob']:.4g}\n" in text
    assert document["extras"] == rollout.records["c2"].extras
    assert [(one["name"], one["dtype"], one["shape"]) for one in document["attachments"]] == [
        ("pixels", "float32", [2, 3]),
        ("ids", "bytes", [1]),
    ]
    members = {name: document[name] for name in StagedCallRecord.model_fields}
    assert StagedCallRecord(**members).digest == rollout.records["c2"].digest


def test_a_relative_path_is_one_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage(tmp_path / "staging")
    monkeypatch.chdir(tmp_path)
    assert run_json("show", "staging")["place"] == str(tmp_path / "staging")


def test_compaction_says_what_it_did(tmp_path: Path) -> None:
    _, keys = stage(tmp_path)
    report = run_json("compact", tmp_path)
    assert (len(report["written"]), len(report["moved"]), len(report["waiting"]), report["deleted"]) == (1, 3, 3, [])
    (segments,) = run_json("show", tmp_path)["segments"]
    assert (segments["segments"], segments["moved_segments"]) == (1, 3)
    assert "3" in run("show", tmp_path)
    assert "3 old segments were removed" in run("compact", tmp_path, "--delay-s", 0)
    with ParquetStagingSource(tmp_path) as source:
        assert source.fetch_prefix_token_ids([keys["c1"], keys["c2"]]).tolist() == [1, 2, 3, 4, 5, 6]


async def test_compaction_frees_what_a_dropped_rollout_left(tmp_path: Path) -> None:
    sink, source = ParquetTokenSink(tmp_path), ParquetTokenSource(tmp_path)
    for rollout_id in ("kept", "dropped"):
        await sink.put(call_entry("c0", [1, 2], [3], rollout_id=rollout_id))
    snapshot = await source.freeze("dropped")
    assert await source.drop("dropped", snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    report = run_json("compact", tmp_path)
    assert (report["dropped_rows"], len(report["written"]), len(report["waiting"])) == (1, 1, 2)
    text = run("compact", tmp_path, "--delay-s", 0, "--forget-dropped-after-s", 0)
    assert "2 old segments were removed" in text
    assert "1 dropped rollouts were forgotten" in text
    assert len((await source.freeze("kept")).entries) == 1
    await sink.put(call_entry("c1", [1], [2], rollout_id="dropped"))
    await sink.close()
    await source.close()


def test_what_compaction_leaves_ends_it_with_exit_code_1(tmp_path: Path) -> None:
    stage(tmp_path)
    victim = sorted(tmp_path.glob("default/*/*.parquet"))[0]
    victim.write_bytes(victim.read_bytes()[:-9])
    assert f"left as it is {victim}" in run("compact", tmp_path, code=1).replace("\n", "")


def test_a_manifest_is_retired(tmp_path: Path) -> None:
    rollout, keys = stage(tmp_path / "store")
    path = manifest(rollout, keys, tmp_path / "manifest.json")
    assert run_json("retire", tmp_path / "store", path) == {"rollout_id": "0-0", "calls": 2, "newly_retired": 2}
    again = run("retire", tmp_path / "store", path)
    assert again == "rollout 0-0: 0 of 2 calls were retired; 2 had been before\n"
    assert [call["retired"] for call in run_json("show", tmp_path / "store", "--calls")] == [True, True, False]
    assert run_json("show", tmp_path / "store")["retirements"] == 1
    with pytest.raises(StagedCallMissingError, match="was retired"):
        run("show", tmp_path / "store", keys["c1"])


async def fill_ledger(root: Path, rollout: StagedRollout, keys: dict[str, str]) -> Path:
    ledger = FileCaptureLedger(root)
    items = [{"role": "user", "content": "hello"}]
    for row in rollout.rows:
        record = row.model_copy(update={"staging_key": keys[row.model_call_id]})
        commit = CaptureLedgerCommit(
            rollout_id=rollout.rollout_id, record=record, request_items=items, response_items=[]
        )
        await ledger.record(commit)
    await ledger.record_failure(rollout.rollout_id, "lost", "worker_capture_failed")
    await ledger.close()
    return root


def test_a_manifest_comes_from_a_ledger_and_is_retired(tmp_path: Path) -> None:
    rollout, keys = stage(tmp_path / "store")
    ledger = asyncio.run(fill_ledger(tmp_path / "ledger", rollout, keys))
    files = {path.name: path.read_bytes() for path in ledger.iterdir()}
    printed = RolloutManifest.model_validate_json(run("manifest", ledger, "0-0"))
    assert [row.staging_key for row in printed.records] == [keys["c1"], keys["c2"]]
    assert [failure.model_call_id for failure in printed.failures] == ["lost"]
    file = tmp_path / "manifest.json"
    file.write_text("replaced as a whole")
    run("manifest", ledger, "0-0", "--output", file)
    assert RolloutManifest.model_validate_json(file.read_bytes()) == printed
    assert file.stat().st_mode & 0o777 == 0o600
    assert {path.name: path.read_bytes() for path in ledger.iterdir()} == files
    assert "2 of 2 calls were retired\n" in run("retire", tmp_path / "store", file)


def test_a_manifest_that_there_is_not(tmp_path: Path) -> None:
    rollout, keys = stage(tmp_path / "store")
    ledger = asyncio.run(fill_ledger(tmp_path / "ledger", rollout, keys))
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")

    async def retire() -> None:
        made = FileCaptureLedger(tmp_path / "retired")
        await made.retire(["0-0"])
        await made.close()

    asyncio.run(retire())
    cases: list[tuple[type[Exception], str, list[object]]] = [
        (CaptureError, "the ledger has no rollout 0-9; there are 0-0$", [ledger, "0-9"]),
        (CaptureError, "has no rollout 0-0; it holds none at all", [tmp_path / "empty", "0-0"]),
        (CaptureError, "no such directory; name the token_id_capture.dir", [tmp_path / "none", "0-0"]),
        (CaptureError, "is a file, not a directory", [tmp_path / "file", "0-0"]),
        (RolloutRetiredError, "retired: rollout '0-0' is retired", [tmp_path / "retired", "0-0"]),
        (RolloutIdError, "cannot be a rollout id", [ledger, "a b"]),
        (StorageError, "is a directory, not a file", [ledger, "0-0", "--output", tmp_path]),
    ]
    for kind, message, arguments in cases:
        with pytest.raises(kind, match=message) as caught:
            run("manifest", *arguments)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "none").exists()


def test_what_is_no_manifest_says_what_to_pass(tmp_path: Path) -> None:
    rollout, keys = stage(tmp_path / "store")
    ledger = asyncio.run(fill_ledger(tmp_path / "ledger", rollout, keys))
    (tmp_path / "README.md").write_text("# read me")
    (tmp_path / "other.json").write_text('{"rollout_id": "r", "records": [{"digest": 3}], "more": 1}')
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "bytes.json").write_bytes(b"\xff")
    remedy = "; pass what `gym-ray staging manifest LEDGER_DIR ROLLOUT_ID --output FILE` wrote"
    for path, problem in (
        (tmp_path / "missing.json", "there is no such file"),
        (tmp_path, "cannot be read: Is a directory"),
        (ledger / "0-0.lineage.jsonl", "it is the ledger of a rollout, not its manifest"),
        (tmp_path / "README.md", "it is no manifest of a rollout (it is no JSON document)"),
        (tmp_path / "bytes.json", "it is no manifest of a rollout (it is no JSON document)"),
        (tmp_path / "list.json", "it is no manifest of a rollout (Input should be an object)"),
        (tmp_path / "other.json", "it is no manifest of a rollout (records.0.model_call_id: Field required)"),
    ):
        with pytest.raises(InputError) as caught:
            run("retire", tmp_path / "store", path)
        assert str(caught.value) == f"{path}: {problem}{remedy}"


def test_a_partition_that_there_is_not_is_an_error(tmp_path: Path) -> None:
    rollout, keys = stage(tmp_path)
    with pytest.raises(CaptureError, match=r"there is no partition 'nope'; there are default$"):
        run("compact", tmp_path, "--partition", "nope")
    run("compact", tmp_path, "--partition", "default")
    run("retire", tmp_path, manifest(rollout, keys, tmp_path.parent / "manifest.json"))
    run("compact", tmp_path, "--partition", "default", "--delay-s", 0)


def test_a_partition_of_a_store_without_any(tmp_path: Path) -> None:
    ParquetStagingSink(tmp_path).close()
    with pytest.raises(CaptureError, match="there is no partition 'default'; there is none yet"):
        run("compact", tmp_path, "--partition", "default")
    with pytest.raises(CaptureError, match="no staging store is here"):
        run("compact", tmp_path / "nothing", "--partition", "default")


def test_what_cannot_be_done_is_one_clear_error(tmp_path: Path) -> None:
    rollout, keys = stage(tmp_path / "store")
    _, foreign = stage(tmp_path / "other")
    path = manifest(rollout, foreign, tmp_path / "manifest.json")
    (tmp_path / "bad.json").write_text('{"rollout_id": ""}')
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/store.json").write_text("{}")
    cases: list[tuple[type[Exception], str, list[object]]] = [
        (CaptureError, "no staging store is here", ["show", tmp_path / "nothing"]),
        (CaptureError, "no staging store is here", ["show", tmp_path / "nothing", "--calls"]),
        (CaptureError, "no staging store is here", ["compact", tmp_path / "nothing"]),
        (CaptureError, "store.json does not say", ["show", tmp_path / "damaged"]),
        (StagedCallMissingError, "is no staging key", ["show", tmp_path / "store", "0-0/c1"]),
        (StagedCallMissingError, "has no segment", ["show", tmp_path / "store", keys["c1"].replace("-0:", "-7:")]),
        (ForeignKeyError, "belongs to store", ["show", tmp_path / "store", foreign["c1"]]),
        (ForeignKeyError, "belongs to store", ["retire", tmp_path / "store", path]),
        (InputError, "bad.json: it is no manifest", ["retire", tmp_path / "store", tmp_path / "bad.json"]),
        (InputError, "missing.json: there is no such file", ["retire", tmp_path / "store", tmp_path / "missing.json"]),
        (SettingsError, "bad.json: is a file, not a directory", ["show", tmp_path / "bad.json"]),
        (
            SettingsError,
            "storage_options.endpoint: .* did you mean endpoint_url",
            ["show", "s3://b/p", "--storage-options", '{"endpoint": "x"}'],
        ),
        (SettingsError, "--storage-options", ["show", tmp_path / "store", "--storage-options", "[1]"]),
        (
            SettingsError,
            "a directory takes no options",
            ["show", tmp_path / "store", "--storage-options", '{"anon": true}'],
        ),
    ]
    for kind, message, arguments in cases:
        with pytest.raises(kind, match=message):
            run(*arguments)


def test_a_damaged_segment_is_named(tmp_path: Path) -> None:
    _, keys = stage(tmp_path)
    for segment in tmp_path.glob("default/*/*.parquet"):
        segment.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(CaptureError, match="truncated, or no Parquet file"):
        run("show", tmp_path, keys["c1"])
    with pytest.raises(CaptureError, match="truncated, or no Parquet file"):
        run("show", tmp_path, "--calls")


def test_other_commands_do_not_load_the_file_libraries() -> None:
    program = "import sys, gym_ray.cli.app; print(sorted({'pyarrow', 'fsspec'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
