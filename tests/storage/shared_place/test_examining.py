"""A directory examined by nodes of which one sees it wrongly: each wrong is named, and nothing is left."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gym_ray.storage.shared_place.directory_hand import DirectoryHand
from gym_ray.storage.shared_place.examining import examine
from gym_ray.storage.shared_place.judging import judge
from gym_ray.storage.shared_place.leftovers import PREFIX
from gym_ray.storage.shared_place.place_calls import PlaceCalls
from gym_ray.storage.shared_place.report import Mode, PlaceFinding, PlaceReport, Severity
from gym_ray.testing.wrong_places import (
    CachingCalls,
    ElsewhereCalls,
    FailingCalls,
    HandNode,
    LocalLockCalls,
    RacyCalls,
    SkewedCalls,
    TaggedCalls,
)

Ask = Callable[..., PlaceReport]
NFS = "36 1 0:3 / / rw - ext4 /dev/a rw\n40 36 0:9 / {} rw,noatime - nfs4 10.0.0.1:/x rw,{}\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "shared"
    made.mkdir()
    return made


@pytest.fixture
def ask(root: Path) -> Iterator[Ask]:
    """Examine ``root`` by one node for each of the file calls given."""
    nodes: list[HandNode] = []

    def examined(
        *calls: PlaceCalls,
        patience_s: float = 0.3,
        step_timeout_s: float = 10.0,
        writer: str = "direct",
        before: Callable[[int, str], None] = lambda node, step: None,
        on_wait: Callable[[], None] | None = None,
    ) -> PlaceReport:
        for me, own in enumerate(calls):
            hand = DirectoryHand(str(root), "run", me, own)
            nodes.append(HandNode(f"n{me}", hand, lambda step, me=me: before(me, step)))
        evidence = examine(
            str(root),
            nodes,
            is_store=False,
            watchers="test",
            patience_s=patience_s,
            step_timeout_s=step_timeout_s,
            on_wait=on_wait,
        )
        return judge(evidence, writer)

    yield examined
    for node in nodes:
        node.close()


def errors(report: PlaceReport) -> list[PlaceFinding]:
    return [found for found in report.findings if found.severity is Severity.ERROR]


def test_a_good_place_is_used_by_files_and_is_left_as_it_was(ask: Ask, root: Path) -> None:
    report = ask(PlaceCalls(), PlaceCalls(), PlaceCalls())
    assert (report.mode, report.usable, errors(report), report.pairs) == (Mode.FILES, True, [], 3)
    assert set(report.worst_lag_s.values()) == {0.0}
    assert len(report.worst_lag_s) == 7
    assert list(root.iterdir()) == []


def test_a_missing_place_is_made_for_the_examination_only(ask: Ask, root: Path) -> None:
    root.rmdir()
    assert ask(PlaceCalls(), PlaceCalls()).mode is Mode.FILES
    assert not root.exists()


def test_a_node_alone_is_enough_for_files(ask: Ask) -> None:
    report = ask(PlaceCalls())
    assert (report.mode, report.usable, report.pairs) == (Mode.FILES, True, 0)


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_another_directory_under_the_same_path_is_found_whoever_has_it(
    ask: Ask, root: Path, tmp_path: Path, odd: int
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    calls = [ElsewhereCalls(root, other) if me == odd else PlaceCalls() for me in range(3)]
    report = ask(*calls)
    assert (report.mode, report.usable) == (Mode.HOSTED, False)
    assert {found.code for found in errors(report)} == {"differs"}
    named = {node for found in errors(report) for node in found.nodes}
    assert named == ({"n1", "n2"} if odd == 0 else {"n2"} if odd == 2 else {"n1", "n2"})
    assert all(str(root) in found.what and f"n{odd}" in found.what for found in errors(report))
    assert list(root.iterdir()) == []
    assert list(other.iterdir()) == []


def test_a_hosted_writer_does_not_need_the_others_to_see_it(ask: Ask, root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    report = ask(PlaceCalls(), ElsewhereCalls(root, other), writer="hosted")
    assert (report.mode, report.usable, errors(report)) == (Mode.HOSTED, True, [])
    assert [found.code for found in report.findings] == ["differs"]


def test_a_directory_that_one_node_lacks_is_found(ask: Ask, root: Path, tmp_path: Path) -> None:
    report = ask(PlaceCalls(), ElsewhereCalls(root, tmp_path / "nowhere"))
    (found,) = errors(report)
    assert (found.code, found.nodes, report.mode) == ("not_there", ("n1",), Mode.HOSTED)
    assert "no such directory" in found.what
    assert not (tmp_path / "nowhere").exists()


def test_locks_that_reach_nobody_else_are_found(ask: Ask) -> None:
    report = ask(LocalLockCalls(), LocalLockCalls(), LocalLockCalls())
    (found,) = errors(report)
    assert (found.code, report.mode, report.usable) == ("locks", Mode.UNUSABLE, False)
    assert found.nodes == ("n0", "n1", "n2")
    assert "two nodes hold one lock (6 such pairs)" in found.what


def test_one_node_whose_locks_are_its_own_is_found(ask: Ask) -> None:
    report = ask(PlaceCalls(), PlaceCalls(), LocalLockCalls())
    (found,) = errors(report)
    assert found.code == "locks"
    assert "n2" in found.nodes


@pytest.mark.parametrize(
    ("calls", "late"),
    [
        ({"contents": True}, {"append", "truncation", "replaced value", "removal"}),
        ({"names": True}, {"identity", "new name"}),
        ({"listings": True}, {"listing"}),
    ],
)
def test_what_is_seen_late_is_late_and_measured(ask: Ask, calls: dict[str, bool], late: set[str]) -> None:
    report = ask(PlaceCalls(), CachingCalls(0.15, **calls), patience_s=5.0)
    assert (report.mode, report.usable) == (Mode.UNUSABLE, False)
    assert {found.code for found in errors(report)} == {"late"}
    assert {what for what, lag in report.worst_lag_s.items() if lag != 0.0} == late
    assert all(0.05 < (report.worst_lag_s[what] or 0.0) < 5.0 for what in late)
    assert all(found.nodes == ("n1",) for found in errors(report))


def test_what_is_never_seen_is_told_with_the_patience(ask: Ask) -> None:
    report = ask(PlaceCalls(), CachingCalls(60.0, contents=True), patience_s=0.1)
    assert report.worst_lag_s["append"] is None
    assert any("n1 saw what was appended to a file by n0 not within 0.1 s" in found.what for found in errors(report))


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EACCES, errno.EDQUOT])
def test_a_node_that_cannot_write_is_found(ask: Ask, number: int) -> None:
    report = ask(PlaceCalls(), FailingCalls(number, writes_only=number == errno.ENOSPC), PlaceCalls())
    (found,) = errors(report)
    assert (found.code, found.nodes, report.mode, report.usable) == ("not_writable", ("n1",), Mode.HOSTED, False)
    assert str(OSError(number, "")).partition("]")[0] in found.what


def test_a_first_node_that_cannot_write_makes_it_unusable(ask: Ask) -> None:
    report = ask(FailingCalls(errno.ENOSPC, writes_only=True), PlaceCalls(), writer="hosted")
    assert (report.mode, report.usable) == (Mode.UNUSABLE, False)
    assert [found.code for found in errors(report)] == ["first_node"]


def test_a_name_that_two_make_is_found(ask: Ask) -> None:
    gate = threading.Barrier(2)
    report = ask(RacyCalls(gate), RacyCalls(gate))
    (found,) = errors(report)
    assert (found.code, report.mode) == ("race", Mode.UNUSABLE)
    assert "2 believe to have got it (exclusive open, 8 of 8 names)" in found.what


def test_a_clock_that_is_ahead_is_a_warning_with_its_lead(ask: Ask) -> None:
    report = ask(PlaceCalls(), SkewedCalls(90.0))
    (found,) = report.findings
    assert (found.code, found.severity, found.nodes, report.usable) == ("clock", Severity.WARNING, ("n1",), True)
    assert "+90.0 s" in found.what


def test_little_space_and_weak_mounts_are_warned_of(ask: Ask, root: Path) -> None:
    mounts = NFS.format(root, "soft")
    report = ask(PlaceCalls(), TaggedCalls(mounts, f_bavail=10, f_frsize=2**20, f_favail=3))
    assert {found.code for found in report.findings} == {"space", "inodes", "soft"}
    assert report.usable
    assert "10.0.0.1:/x" in report.nodes["n1"]


def test_a_container_layer_is_warned_of(ask: Ask) -> None:
    report = ask(TaggedCalls("36 1 0:3 / / rw - overlay overlay rw"))
    assert [found.code for found in report.findings] == ["volatile"]


def test_a_node_that_dies_midway_is_named_and_its_files_are_taken_away(ask: Ask, root: Path) -> None:
    def die(node: int, step: str) -> None:
        if node == 1 and step not in ("begin", "clock", "work_alone", "prepare", "look", "change"):
            raise ConnectionError("the node is gone")

    report = ask(PlaceCalls(), PlaceCalls(), PlaceCalls(), before=die)
    (found,) = errors(report)
    assert (found.code, found.nodes, report.mode) == ("lost", ("n1",), Mode.UNUSABLE)
    assert "the node is gone" in found.what
    assert list(root.iterdir()) == []


def test_a_node_that_hangs_is_given_up(ask: Ask, root: Path) -> None:
    released = threading.Event()

    def hang(node: int, step: str) -> None:
        if (node, step) == (1, "hold_lock"):
            assert released.wait(30)

    timer = threading.Timer(1.0, released.set)
    timer.start()
    report = ask(PlaceCalls(), PlaceCalls(), step_timeout_s=0.4, before=hang)
    timer.join()
    (found,) = errors(report)
    assert found.nodes == ("n1",)
    assert "no answer to 'hold_lock' after 0.4 s" in found.what
    assert list(root.iterdir()) == []


def test_an_interrupt_leaves_nothing(ask: Ask, root: Path) -> None:
    rounds = iter(range(100))

    def interrupt() -> None:
        if next(rounds) == 12:
            assert [path.name for path in root.iterdir()] == [f"{PREFIX}run"]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask(PlaceCalls(), PlaceCalls(), on_wait=interrupt)
    assert list(root.iterdir()) == []
