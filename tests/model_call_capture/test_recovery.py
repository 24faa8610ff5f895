from __future__ import annotations

import fcntl
import threading
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import CaptureError
from gym_ray.model_call_capture import recovery
from gym_ray.model_call_capture.open_log import OpenLog, list_logs
from gym_ray.model_call_capture.recovery import adopt_dead_logs, lost_calls_of_dead_writers
from gym_ray.model_call_capture.store import CaptureStore

CALL = f"{1:032x}"


@pytest.fixture
def store(tmp_path: Path) -> CaptureStore:
    """A directory in which a server named ``s`` died with one call open."""
    log = OpenLog(tmp_path, "s-1.log")
    log.begin(CALL, "0-0")
    log.close()
    return CaptureStore(tmp_path)


def test_servers_that_start_together_adopt_one_after_the_other(
    store: CaptureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_results: list[Any] = []

    def adopt_too() -> None:
        try:
            second_results.append(adopt_dead_logs(store, "s"))
        except CaptureError as error:
            second_results.append(error)

    second = threading.Thread(target=adopt_too)
    real = recovery.lost_calls

    def with_company(*arguments: Any) -> dict[str, list[str]]:
        if not second.is_alive():
            second.start()
            second.join(0.2)  # long enough to remove the log under our hands, were it not kept out
        return real(*arguments)

    monkeypatch.setattr(recovery, "lost_calls", with_company)
    assert adopt_dead_logs(store, "s") == ["0-0"]
    second.join(20)
    assert second_results == [[]], "the second finds the log gone: it is adopted already"
    assert store.is_incomplete("0-0")
    assert list_logs(store.root) == []


def test_a_reader_finds_the_dead_while_they_are_adopted(store: CaptureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real, found = recovery.lost_calls, []

    def read_meanwhile(*arguments: Any) -> dict[str, list[str]]:
        monkeypatch.setattr(recovery, "lost_calls", real)
        found.append(lost_calls_of_dead_writers(store, ["0-0"]))
        return real(*arguments)

    monkeypatch.setattr(recovery, "lost_calls", read_meanwhile)
    adopt_dead_logs(store, "s")
    assert found == [{"0-0": [CALL]}]


def test_a_log_that_somebody_removed_is_adopted(store: CaptureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = recovery.lost_calls

    def remove_meanwhile(*arguments: Any) -> dict[str, list[str]]:
        list_logs(store.root)[0].unlink()
        return real(*arguments)

    monkeypatch.setattr(recovery, "lost_calls", remove_meanwhile)
    assert adopt_dead_logs(store, "s") == ["0-0"]


def test_other_servers_logs_and_living_ones_stay(store: CaptureStore) -> None:
    living = OpenLog(store.root, "s-2.log")
    assert adopt_dead_logs(store, "other") == []
    assert adopt_dead_logs(store, "s") == ["0-0"]
    assert list_logs(store.root) == [living.path]
    living.close()


def test_adoption_without_locks_is_refused(store: CaptureStore) -> None:
    (store.root / ".gym-ray").mkdir()
    (store.root / ".gym-ray" / "adopt.lock").mkdir()
    with pytest.raises(CaptureError, match=r"adopt\.lock: cannot be created and locked"):
        adopt_dead_logs(store, "s")
    assert len(list_logs(store.root)) == 1


def test_adopters_hold_one_lock(store: CaptureStore) -> None:
    path = store.root / ".gym-ray" / "adopt.lock"
    path.parent.mkdir()
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        adopter = threading.Thread(target=adopt_dead_logs, args=(store, "s"))
        adopter.start()
        adopter.join(0.05)
        assert len(list_logs(store.root)) == 1
    adopter.join(20)
    assert list_logs(store.root) == []
