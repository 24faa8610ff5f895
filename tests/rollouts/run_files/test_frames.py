from __future__ import annotations

import struct
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ray.errors import StorageError
from gym_ray.rollouts.run_files.frames import (
    BLOCK_BYTES,
    FRAME_BYTES,
    Frame,
    FrameKind,
    read_blocks,
    read_frames,
    whole_in,
)
from gym_ray.storage.calls import FileCalls

IN_A_BLOCK = BLOCK_BYTES // FRAME_BYTES


def unsigned(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1)


FRAMES = st.builds(
    Frame,
    st.sampled_from(FrameKind),
    unsigned(64),
    unsigned(32),
    st.binary(min_size=16, max_size=16),
    unsigned(64),
    unsigned(8),
    unsigned(64),
    unsigned(64),
    unsigned(32),
)


def started(count: int) -> bytes:
    return b"".join(Frame(FrameKind.STARTED, n, n, bytes(16), n).encode() for n in range(count))


def ordinals(path: Path) -> list[int]:
    return [frame.ordinal for frame in read_frames(path)]


@given(st.lists(FRAMES, max_size=5))
def test_what_is_encoded_is_read_field_by_field(frames: list[Frame]) -> None:
    block, whole = whole_in(b"".join(frame.encode() for frame in frames))
    assert whole.all()
    assert [Frame.of(entry) for entry in block] == frames


def test_a_frame_lies_as_it_is_documented() -> None:
    data = Frame(FrameKind.FINISHED, 5, 2, b"d" * 15 + b"\0", 9, 1, 6, 7, 3).encode()
    assert data[4:] == struct.pack("<BBHIIQQQQ16s", 3, 1, 1, 2, 3, 5, 6, 7, 9, b"d" * 15 + b"\0")
    assert struct.unpack("<I", data[:4])[0] == google_crc32c.value(data[4:])


def test_every_changed_bit_of_a_frame_is_noticed() -> None:
    data = started(2)
    for bit in range(8 * FRAME_BYTES):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        assert whole_in(bytes(changed))[1].tolist() == [False, True]


@pytest.mark.parametrize(("at", "value"), [(4, 0), (4, 4), (6, 2), (6, 0), (7, 1)])
def test_a_frame_of_an_unknown_kind_or_version_is_not_whole(at: int, value: int) -> None:
    data = bytearray(started(1))
    data[at] = value
    data[:4] = struct.pack("<I", google_crc32c.value(bytes(data[4:])))
    assert whole_in(bytes(data))[1].tolist() == [False]


@pytest.mark.parametrize("count", [0, 1, IN_A_BLOCK - 1, IN_A_BLOCK, IN_A_BLOCK + 1, 2 * IN_A_BLOCK])
@pytest.mark.parametrize("more", [b"", b"x", bytes(FRAME_BYTES - 1), bytes(FRAME_BYTES), bytes(BLOCK_BYTES + 7)])
def test_blocks_hold_every_whole_frame_once_and_nothing_of_the_tail(tmp_path: Path, count: int, more: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(started(count) + more)
    blocks = list(read_blocks(path))
    assert all(0 < len(block) <= IN_A_BLOCK for block in blocks)
    assert [int(ordinal) for block in blocks for ordinal in block["ordinal"]] == list(range(count))


@pytest.mark.parametrize("damaged", [0, 1, IN_A_BLOCK - 1, IN_A_BLOCK, IN_A_BLOCK + 1, 2 * IN_A_BLOCK - 1])
@pytest.mark.parametrize("later", [1, IN_A_BLOCK, 2 * IN_A_BLOCK])
def test_damage_before_a_whole_frame_is_named_wherever_it_lies(tmp_path: Path, damaged: int, later: int) -> None:
    path, data = tmp_path / "log", bytearray(started(damaged + later + 1))
    at = FRAME_BYTES * damaged
    data[at : at + FRAME_BYTES * later] = bytes(FRAME_BYTES * later)
    path.write_bytes(data)
    seen: list[int] = []
    with pytest.raises(StorageError, match=rf"log: the frame at byte {at} is damaged, .* --salvage"):
        seen.extend(frame.ordinal for frame in read_frames(path))
    assert seen == list(range(damaged)), "what lies before the damage was read"


class InPieces(FileCalls):
    """Answers reads with fewer bytes than were asked for, as a file system over a network may."""

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return super().pread(fd, min(size, 100), offset)


def test_reads_that_give_less_than_was_asked_for_are_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(started(50) + b"torn")
    assert [frame.ordinal for frame in read_frames(path, calls=InPieces())] == list(range(50))


def test_a_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="missing: the log cannot be read"):
        ordinals(tmp_path / "missing")
    with pytest.raises(StorageError, match=f"{tmp_path}: the log cannot be read"):
        ordinals(tmp_path)


@settings(max_examples=20)
@given(st.lists(st.booleans(), max_size=40))
def test_damaged_frames_are_told_from_whole_ones_one_by_one(whole: list[bool]) -> None:
    data = bytearray(started(len(whole)))
    for number, is_whole in enumerate(whole):
        data[FRAME_BYTES * number + 33] ^= not is_whole
    block, found = whole_in(bytes(data))
    assert found.tolist() == whole
    assert np.array_equal(block["ordinal"], np.arange(len(whole)))
