from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gym_ray.errors import StorageError
from gym_ray.rollouts.run_files.frames import FRAME_BYTES, Frame, FrameKind, whole_in
from gym_ray.rollouts.run_files.index_coverage import Coverage
from gym_ray.rollouts.run_files.ledger_log import LedgerLog
from gym_ray.rollouts.run_files.run_index import IndexLog, finished_frame, read_index, written_of
from gym_ray.rollouts.run_files.run_log import written_line
from gym_ray.rollouts.run_paths import Written
from gym_ray.storage.calls import FileCalls

PLACES = [
    Written("main", 0, 10, b"a" * 16),
    Written("failures", 2**40, 2**33, b"b" * 16, 0xFF03),
    Written("main", 10, 5),
]


async def test_frames_say_where_records_lie(tmp_path: Path) -> None:
    path = tmp_path / "index.log"
    with IndexLog(path) as log:
        await asyncio.gather(*(log.append(n, 2 * n, written) for n, written in enumerate(PLACES)))
    assert path.stat().st_size == 3 * FRAME_BYTES
    frames = list(read_index(path))
    assert [(frame.ordinal, frame.attempt) for frame in frames] == [(0, 0), (1, 2), (2, 4)]
    assert [written_of(frame) for frame in frames[:2]] == PLACES[:2]
    assert written_of(frames[2]) == Written("main", 10, 5, bytes(16))


async def test_a_frame_that_says_nothing_of_a_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "index.log"
    with LedgerLog(path) as log:
        await log.append(FrameKind.STARTED, 3, 0, "3-0")
    with pytest.raises(StorageError, match="row 3 says nothing of a record"):
        list(read_index(path))
    path.unlink()
    with IndexLog(path) as index:
        index.append_frames([Frame(FrameKind.FINISHED, 4, 0, bytes(16), 1, file=2, length=3)])
    with pytest.raises(StorageError, match="row 4 says nothing"):
        list(read_index(path))


def coverage(*places: tuple[int, int]) -> Coverage:
    found = Coverage()
    for offset, length in places:
        found.add(finished_frame(0, 0, Written("main", offset, length)))
    return found


@pytest.mark.parametrize(
    ("places", "size", "holes"),
    [
        ([], 0, []),
        ([], 7, [(0, 7)]),
        ([(0, 5), (5, 5)], 10, []),
        ([(5, 5), (0, 5)], 12, [(10, 12)]),
        ([(7, 1), (2, 3)], 8, [(0, 2), (5, 7)]),
        ([(0, 5), (4, 2)], 10, None),
        ([(0, 5), (0, 5)], 10, None),
        ([(0, 11)], 10, None),
        ([(10, 1)], 10, None),
        ([(2**63, 2**63)], 10, None),
        ([(3, 0)], 10, None),
        ([(0, 1)], 0, None),
    ],
)
def test_what_frames_leave_out(places: list[tuple[int, int]], size: int, holes: list[tuple[int, int]] | None) -> None:
    assert coverage(*places).holes(size) == holes


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_a_block_of_frames_covers_what_its_frames_cover(tmp_path: Path, order: list[int]) -> None:
    lines = [b'{"a": 1}', b'{"b": 22}', b'{"c": 333}']
    path = tmp_path / "out"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    places = [written_line("main", 0, lines[0]), written_line("main", 9, lines[1]), written_line("main", 19, lines[2])]
    frames = [finished_frame(number, 0, places[number]) for number in order]
    found = Coverage()
    for part in (frames[:2], [], frames[2:]):
        found.add_block(whole_in(b"".join(frame.encode() for frame in part))[0])
    assert found.holes(31) == [(30, 31)]
    assert found.last_is_there(path, FileCalls())
    path.write_bytes(path.read_bytes().replace(b"333", b"334"))
    assert not found.last_is_there(path, FileCalls())


def test_the_last_record_must_be_where_its_frame_says(tmp_path: Path) -> None:
    path, lines = tmp_path / "out", (b'{"a": 1}', b'{"b": "' + b"x" * 600_000 + b'"}')
    path.write_bytes(lines[0] + b"\n" + lines[1] + b"\n")

    def is_there(written: Written) -> bool:
        found = Coverage()
        found.add(finished_frame(0, 0, written))
        return found.last_is_there(path, FileCalls())

    assert is_there(written_line("main", 0, lines[0]))
    assert is_there(written_line("main", 9, lines[1])), "a large record is not read"
    assert is_there(Written("main", 0, 9)), "a place without a digest is looked at by its ends"
    assert not is_there(written_line("main", 0, lines[0].replace(b"1", b"2")))
    assert not is_there(written_line("main", 8, lines[1]))
    assert not is_there(Written("main", 0, 8))
    assert not is_there(Written("main", 1, 8)), "a record begins where a line does"
    path.write_bytes(b"")
    assert not is_there(written_line("main", 0, lines[0]))
