"""The log of a driver: whole lines, no secrets, and no end for want of room."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ray.submission.driver_log import DriverLog

_SECRET = "sk-0123456789"


@pytest.fixture
def nowhere() -> Iterator[int]:
    """A descriptor that takes everything."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


def test_lines_are_written_when_they_end(tmp_path: Path, nowhere: int) -> None:
    log = DriverLog(tmp_path / "log", [], nowhere)
    log.feed(b"one\ntw")
    assert (tmp_path / "log").read_bytes() == b"one\n"
    log.say("mine")
    log.feed(b"rest")
    log.close()
    assert (tmp_path / "log").read_bytes() == b"one\ntw\n[driver] mine\nrest\n"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=6), st.integers(0, 90_000), st.booleans())
def test_no_cut_lets_a_secret_through(cuts: list[int], before: int, line_end: bool) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    data = b"x" * before + _SECRET.encode() * 3 + b"y" * 70_000 + (b"\n" if line_end else b"")
    with tempfile.TemporaryDirectory() as directory:
        log = DriverLog(Path(directory) / "log", [_SECRET], write_end)
        for cut in cuts:
            log.feed(data[:cut])
            data = data[cut:]
        log.feed(data)
        log.close()
        written = log.path.read_bytes()
    os.close(write_end)
    assert _SECRET.encode() not in written
    assert written.count(b"*" * 10) == 3
    assert written.count(b"x") == before


def test_a_secret_of_several_lines_is_hidden_line_by_line(tmp_path: Path, nowhere: int) -> None:
    log = DriverLog(tmp_path / "log", ["-----BEGIN KEY-----\nabcdefgh\nshort\n"], nowhere)
    log.feed(b"abcdefgh\nshort\n")
    log.close()
    assert (tmp_path / "log").read_bytes() == b"**********\nshort\n"


def test_a_full_disk_is_counted_and_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    read_end, write_end = os.pipe()
    log = DriverLog(tmp_path / "log", [], write_end)
    log.feed(b"12345\n")
    log.close()
    os.close(write_end)
    assert os.read(read_end, 100) == b"12345\n"
    os.close(read_end)
    assert log.lost_bytes == 6
    assert "6 bytes of output are not in" in log.remark()
    assert "No space left" in log.remark()


def test_a_log_that_cannot_be_opened_is_told(tmp_path: Path, nowhere: int) -> None:
    log = DriverLog(tmp_path / "absent" / "log", [], nowhere)
    log.feed(b"12345\n")
    log.close()
    assert "No such file" in log.remark()
