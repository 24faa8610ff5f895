"""``gym-ray staging`` shows what a store holds, puts it together, and retires what a manifest names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gym_ray.cli.app import app
from gym_ray.errors import CaptureError, ForeignKeyError, InputError, SettingsError, StagedCallMissingError
from gym_ray.testing.staged_rollout import StagedRollout
from gym_ray.testing.token_source import call_entry
from gym_ray.token_id_capture.staging import RolloutManifest, StagedCallRecord
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
    assert keys["c1"] not in run("show", tmp_path, "--calls")


def test_one_call_is_shown(tmp_path: Path) -> None:
    rollout, keys = stage(tmp_path)
    text = run("show", tmp_path, keys["c2"])
    for part in ("0-0", "c2", "token_in", "[bold]☃", "pixels", "float32 2x3", rollout.records["c2"].chain_hash):
        assert part in text
    document = run_json("show", tmp_path, keys["c2"])
    assert document["token_ids_delta"] == [4, 5, 6]
    sampled = rollout.records["c2"].generation_log_probs_delta.tolist()[1:]
    assert (document["generated"], document["mean_log_prob"]) == (2, sum(sampled) / 2)
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
    assert "0 of 2 calls were retired" in run("retire", tmp_path / "store", path)
    assert [call["retired"] for call in run_json("show", tmp_path / "store", "--calls")] == [True, True, False]
    assert run_json("show", tmp_path / "store")["retirements"] == 1
    with pytest.raises(StagedCallMissingError, match="was retired"):
        run("show", tmp_path / "store", keys["c1"])


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
        (InputError, "missing.json: it is no manifest", ["retire", tmp_path / "store", tmp_path / "missing.json"]),
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
