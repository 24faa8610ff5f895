from __future__ import annotations

import os
from pathlib import Path

from gym_ray.storage.shared_place.directory_hand import DirectoryHand
from gym_ray.storage.shared_place.leftovers import PREFIX


def test_what_a_killed_run_left_is_swept_and_a_living_one_is_not(tmp_path: Path) -> None:
    old, young, foreign = tmp_path / f"{PREFIX}old", tmp_path / f"{PREFIX}young", tmp_path / "other"
    for place in (old, young, foreign):
        place.mkdir()
        (place / "lock-0").write_text("")
    os.utime(old, (1, 1))
    os.utime(foreign, (1, 1))
    hand = DirectoryHand(str(tmp_path), "mine", 0)
    assert hand.begin(create=False).problem == ""
    assert not old.exists()
    assert (young / "lock-0").exists()
    hand.sweep()
    hand.finish()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{PREFIX}young", "other"]


def test_a_place_that_was_made_stays_when_somebody_uses_it(tmp_path: Path) -> None:
    hand = DirectoryHand(str(tmp_path / "a" / "b"), "mine", 0)
    assert hand.begin(create=True).there
    (tmp_path / "a" / "theirs").write_text("")
    hand.sweep()
    hand.finish()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["theirs"]
