"""Every kind of damage in a capture directory is found, named by file and line, and nothing is changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import CaptureError
from gym_ray.model_call_capture.findings import CaptureFinding, CaptureVerification
from gym_ray.model_call_capture.open_log import OpenLog, log_name
from gym_ray.model_call_capture.registry import RegisteredWriter, WriterRegistry
from gym_ray.model_call_capture.store import CaptureStore
from gym_ray.model_call_capture.verification.directory import verify_captures
from gym_ray.model_call_capture.verification.repeated_ids import RepeatedIds


def _call(call_id: str, **members: Any) -> dict[str, Any]:
    call = {
        "model_call_id": call_id,
        "dialect": "chat",
        "model_ref": {"type": "responses_api_models", "name": "policy"},
        "started_at": 1000.0,
        "completed_at": 1001.0,
        "latency_ms": 1000.0,
        "latency_ttft_ms": None,
        "status_code": 200,
        "error_category": None,
        "request": {"messages": []},
        "response": {"choices": []},
    }
    return call | members


@pytest.fixture
def store(tmp_path: Path) -> CaptureStore:
    store = CaptureStore(tmp_path / "captures")
    for number in range(3):
        store.record("0-0", _call(f"a{number}"))
    store.record("0-1", _call("b0"))
    return store


def _only(store: CaptureStore, code: str) -> CaptureFinding:
    verification = verify_captures(store.root)
    assert [finding.code for finding in verification.findings] == [code]
    (finding,) = verification.findings
    assert finding.remedy
    assert (verification.errors, verification.warnings) == ((1, 0) if finding.severity == "error" else (0, 1))
    return finding


def _append(store: CaptureStore, data: bytes, rollout_id: str = "0-0") -> None:
    with store.path_for(rollout_id).open("ab") as file:
        file.write(data)


def _line(call: dict[str, Any]) -> bytes:
    return json.dumps(call).encode() + b"\n"


def test_a_sound_directory_has_no_findings(store: CaptureStore) -> None:
    store.clear("0-1")
    store.record("0-1", _call("b1"))
    store.path_for("0-2").touch(mode=0o600)
    (store.root / "0-0.tokens.jsonl").touch()
    size = sum(store.path_for(rollout_id).stat().st_size for rollout_id in ("0-0", "0-1"))
    assert verify_captures(store.root) == CaptureVerification(store.root, 3, 1, 4, 4, size, 0, 0, 0, ())


@pytest.mark.parametrize(
    ("data", "code", "line", "what"),
    [
        (b'{"half": \n', "damaged_line", 4, "no JSON"),
        (b"\xff\xfe\n", "damaged_line", 4, "no JSON"),
        (b"\n\n\0\0\0\n", "damaged_line", 6, "holds zero bytes"),
        (b"[1]\n", "damaged_line", 4, "a list, no object"),
        (b'{"half": "of a li', "torn_line", 4, "ends after 17 bytes"),
        (_line(_call("x"))[:-1], "line_without_end", 4, "without a line feed"),
        (_line(_call("x", status_code="200")), "no_call_record", 4, "status_code"),
        (_line(_call("x", model_ref={"type": "other", "name": "m"})), "no_call_record", 4, "model_ref"),
        (_line(_call("x", latency_ms=-1.0)), "negative_latency", 4, "latency_ms is -1.0"),
        (_line(_call("x", latency_ttft_ms=-2)), "negative_latency", 4, "latency_ttft_ms is -2"),
        (_line(_call("x", completed_at=999.0)), "clock_set_back", 4, "before started_at"),
        (_line({**_call("x"), "model_call_id": None}), "no_call_id", 4, "no id"),
        (_line(_call("a1")), "repeated_call_id", 4, "call a1 is in this file, too, line 2"),
        (_line(_call("b0")), "repeated_call_id", 1, "call b0 is in"),
    ],
)
def test_each_damage_is_named_by_its_line(store: CaptureStore, data: bytes, code: str, line: int, what: str) -> None:
    _append(store, data)
    finding = _only(store, code)
    assert finding.line == line
    assert what in finding.what
    assert finding.file.name in ("0-0.capture.jsonl", "0-1.capture.jsonl")


def test_a_cut_at_every_byte_is_found_or_harmless(store: CaptureStore) -> None:
    path = store.path_for("0-0")
    whole = path.read_bytes()
    ends = {0} | {at + 1 for at, byte in enumerate(whole) if byte == 10}
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        codes = [finding.code for finding in verify_captures(store.root).findings]
        expected = [] if size in ends else ["line_without_end"] if size + 1 in ends else ["torn_line"]
        assert codes == expected, size


def test_markers_are_named_with_and_without_their_file(store: CaptureStore) -> None:
    store.mark_incomplete("0-0")
    store.mark_incomplete("5-0")
    found = {finding.code: finding.file.name for finding in verify_captures(store.root).findings}
    assert found == {"marked_incomplete": "0-0.capture.incomplete", "marker_without_file": "5-0.capture.incomplete"}


@pytest.mark.parametrize("name", ["notes.txt", "0-0.capture.jsonl.bak", "0-0.capture.jsonl~"])
def test_foreign_files_are_named(store: CaptureStore, name: str) -> None:
    (store.root / name).touch()
    assert _only(store, "foreign_file").file.name == name


def test_a_name_that_is_no_rollout_is_an_error(store: CaptureStore) -> None:
    (store.root / "a b.capture.jsonl").touch()
    assert _only(store, "no_rollout_id").severity == "error"


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.symlink_to("0-0.capture.jsonl")])
def test_a_capture_that_is_no_file_is_an_error(store: CaptureStore, make: Callable[[Path], None]) -> None:
    make(store.path_for("9-9"))
    assert _only(store, "no_regular_file").file.name == "9-9.capture.jsonl"


def test_files_that_others_may_read_are_named(store: CaptureStore) -> None:
    store.path_for("0-1").chmod(0o640)
    finding = _only(store, "open_to_others")
    assert "0640" in finding.what
    assert finding.remedy.startswith("chmod go-rwx")
    assert store.path_for("0-1").stat().st_mode & 0o777 == 0o640, "a look changes nothing"
    store.path_for("0-1").chmod(0o600)
    store.root.chmod(0o755)
    assert _only(store, "open_to_others").file == store.root


def _dead_log(store: CaptureStore, **calls: str) -> Path:
    """Leave the log of a server that died with these calls open: call id to rollout id."""
    log = OpenLog(store.root, log_name("policy", "e1"))
    for call_id, rollout_id in calls.items():
        log.begin(call_id, rollout_id)
    os.close(log._fd)  # what the end of its process does
    return log.path


def test_calls_that_a_dead_server_lost_are_named(store: CaptureStore) -> None:
    path = _dead_log(store, a0="0-0", b0="0-1", zz="0-1", yy="7-7")
    findings = verify_captures(store.root).findings
    assert [(finding.code, finding.severity, finding.file) for finding in findings] == [
        ("lost_call", "error", path)
    ] * 2
    assert {
        what
        for finding in findings
        for what in ("call zz of rollout 0-1", "call yy of rollout 7-7")
        if what in finding.what
    } == {"call zz of rollout 0-1", "call yy of rollout 7-7"}
    store.mark_incomplete("0-1")
    marked = {finding.severity for finding in verify_captures(store.root).findings if "zz" in finding.what}
    assert marked == {"warning"}
    assert path.exists()


def test_open_calls_of_a_living_server_are_no_finding(store: CaptureStore) -> None:
    log = OpenLog(store.root, log_name("policy", "e1"))
    registry = WriterRegistry(store.root)
    registry.add(RegisteredWriter("policy-e1", "policy", log.path.name, None, None, "here", 1))
    try:
        log.begin("zz", "0-0")
        assert verify_captures(store.root).findings == ()
    finally:
        log.close()
    assert {finding.code for finding in verify_captures(store.root).findings} == {"dead_writer", "lost_call"}


def test_dead_and_damaged_registrations_are_named(store: CaptureStore) -> None:
    registry = WriterRegistry(store.root)
    registry.add(RegisteredWriter("policy-e1", "policy", "policy-e1.log", None, None, "there", 17))
    (store.root / ".gym-ray" / "writers" / "odd.json").write_text("{}")
    found = {finding.code: finding.what for finding in verify_captures(store.root).findings}
    assert set(found) == {"dead_writer", "damaged_registration"}
    assert "policy on there (pid 17)" in found["dead_writer"]


def test_damage_without_end_is_counted_and_not_listed(store: CaptureStore) -> None:
    _append(store, b"{broken\n" * 5000)
    verification = verify_captures(store.root)
    assert verification.errors == 5000
    assert len(verification.findings) == 20
    assert verification.findings[0].line == 4


def test_a_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="model_call_capture_dir"):
        verify_captures(tmp_path / "missing")


def test_ids_that_repeat_are_found_among_many() -> None:
    ids = RepeatedIds()
    for file in range(50):
        ids.begin(Path(f"f{file}"))
        for number in range(200):
            ids.add(f"{file}-{number}")
        if file in (7, 31):
            ids.add("3-3")
    suspects, files = ids.suspects()
    assert files == [Path("f3"), Path("f7"), Path("f31")]
    assert ids.is_suspect("3-3", suspects)
    assert not ids.is_suspect("3-4", suspects)


@pytest.mark.parametrize("log", [5, [], {}, True, "\0", "\ud800", "a-directory"])
def test_a_registration_without_a_usable_log_is_named_and_hides_no_other(store: CaptureStore, log: Any) -> None:
    registry = WriterRegistry(store.root)
    registry.add(RegisteredWriter("first", "policy", log, None, None, "here", 1))
    registry.add(RegisteredWriter("second", "policy", "second.log", None, None, "here", 2))
    (store.root / ".open" / "a-directory").mkdir(parents=True)
    (store.root / ".gym-ray" / "writers" / "third.json").write_text("{}")
    found = [(finding.file.stem, finding.code) for finding in verify_captures(store.root).findings]
    damaged = "damaged_registration"
    assert found == [("first", damaged), ("second", "dead_writer"), ("third", damaged)]


@pytest.mark.parametrize(("name", "code"), [(".open", "unreadable_log"), (".gym-ray", "unreadable_registry")])
def test_a_file_in_the_place_of_a_directory_is_named(store: CaptureStore, name: str, code: str) -> None:
    (store.root / name).write_text("")
    assert _only(store, code).severity == "error"


def test_a_marker_that_goes_away_meanwhile_is_no_finding(store: CaptureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.mark_incomplete("0-0")
    marker, lstat = store.incomplete_path_for("0-0"), Path.lstat

    def vanishing(path: Path) -> os.stat_result:
        info = lstat(path)
        if path == marker:
            path.unlink()
        return info

    monkeypatch.setattr(Path, "lstat", vanishing)
    assert verify_captures(store.root).errors == 0
