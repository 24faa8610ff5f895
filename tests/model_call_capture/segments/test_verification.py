"""What verification says of an object store: damage, repeated calls, marks, dead writers."""

from __future__ import annotations

import secrets
from typing import Any

from typer.testing import CliRunner

from gym_ray.capture_location import CaptureLocation
from gym_ray.cli.app import app
from gym_ray.model_call_capture.registry import dead_name, own_place
from gym_ray.model_call_capture.segments.verification import verify_segments
from gym_ray.storage.opening import open_store
from gym_ray.testing.segment_writers import WriterWorld


def place() -> tuple[CaptureLocation, WriterWorld]:
    location = CaptureLocation(f"memory://verified-{secrets.token_hex(6)}")
    return location, WriterWorld(open_store(location.where), open_store(own_place(location.where)))


def call(number: int, **members: Any) -> dict[str, Any]:
    response = {"choices": [{"index": 0, "message": {"content": "hi"}}]}
    whole = {"model_call_id": f"{number:032x}", "dialect": "chat", "status_code": 200, "response": response}
    return {**whole, "request": {}, "started_at": float(number), **members}


def codes(location: CaptureLocation) -> list[tuple[str, str]]:
    return [(finding.severity, finding.code) for finding in verify_segments(location).findings]


def test_a_sound_place_has_no_findings() -> None:
    location, world = place()
    world.writer("one").record(("0-0", call(1)), ("1-0", call(2)))
    world.writer("two").record(("0-0", call(3)))
    found = verify_segments(location)
    assert (found.directory, found.files, found.lines, found.calls, found.errors) == (location.where, 2, 3, 3, 0)
    assert found.findings == ()


def test_what_is_wrong_is_named() -> None:
    location, world = place()
    writer = world.writer("one")
    name = writer.record(("0-0", call(1)), ("0-0", call(2)))
    writer.record(("0-0", call(1)))
    writer.record(("0-0", call(2, status_code=500)))
    cut = writer.record(("0-0", call(9)))
    world.store.publish(cut, world.store.read(cut)[:-1])
    world.store.publish("segments/notes.txt", b"mine")
    writer.mark("0-0")
    writer.mark("5-0")
    world.own.create(dead_name(writer.writer_id), b"{}")
    assert sorted(codes(location)) == [
        ("error", "damaged_segment"),
        ("error", "repeated_call_id"),
        ("warning", "dead_writer"),
        ("warning", "foreign_file"),
        ("warning", "marked_incomplete"),
        ("warning", "marker_without_file"),
        ("warning", "published_twice"),
    ]
    data = world.store.read(name)
    world.store.publish(name, b"#" + data[1:])
    assert ("error", "damaged_line") in codes(location)


def test_commands_take_a_url() -> None:
    location, world = place()
    writer = world.writer("one")
    writer.record(("0-0", call(1)), ("1-0", call(2)))
    writer.mark("1-0")
    runner = CliRunner(env={"COLUMNS": "200"})
    listed = runner.invoke(app, ["captures", "ls", location.where], catch_exceptions=False).output
    assert [line.split()[:2] for line in listed.splitlines()[1:]] == [["0-0", "1"], ["1-0", "1"]]
    assert "incomplete" in listed
    shown = runner.invoke(app, ["captures", "show", location.where, "0-0"], catch_exceptions=False).output
    assert f"{1:032x}" in shown
    raw = runner.invoke(app, ["captures", "show", "--raw", location.where, "0-0"], catch_exceptions=False).output
    assert raw.startswith('{"model_call_id"')
    verified = runner.invoke(app, ["captures", "verify", location.where], catch_exceptions=False)
    assert verified.exit_code == 0
    assert "2 calls in 2 lines" in verified.output


def test_commands_say_what_they_cannot_open() -> None:
    location, _ = place()
    runner = CliRunner(env={"COLUMNS": "200"})
    for arguments, part in [
        (["captures", "tokens", location.where, "0-0"], "token captures are in directories"),
        (["captures", "show", location.where, "0-0"], "no capture of rollout 0-0"),
        (["captures", "ls", "ftp://host/x"], "captures cannot be kept under ftp://"),
        (["captures", "ls", location.where, "--storage-options", "[1]"], "is no JSON object"),
        (["captures", "ls", "/missing"], "not a directory"),
    ]:
        result = runner.invoke(app, arguments)
        assert result.exit_code != 0
        assert part in str(result.exception) + result.output
