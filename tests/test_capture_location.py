"""Where captures are: a directory or a place in an object store, never its credentials in a text."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import SettingsError


def test_a_directory_is_one_however_it_is_written() -> None:
    assert CaptureLocation("/a/b").directory == Path("/a/b")
    assert CaptureLocation("file:///a%20b/c").directory == Path("/a b/c")
    assert CaptureLocation.of(Path("/a")).where == "/a"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/prefix/", "s3://bucket/prefix"),
        ("s3://key:word@bucket/prefix?token=word#word", "s3://bucket/prefix"),
        ("abfs://container@account/prefix", "abfs://container@account/prefix"),
        ("memory://a", "memory://a"),
    ],
)
def test_a_url_is_shown_without_what_may_be_a_secret(url: str, shown: str) -> None:
    location = CaptureLocation(url, {"secret": "word"})
    assert location.directory is None
    assert (str(location), location.where) == (shown, url)
    assert pickle.loads(pickle.dumps(location)) == location
    assert "word" not in repr(CaptureLocation("s3://bucket", {"secret": "word"}))


@pytest.mark.parametrize("where", ["relative", "", "~/x", "ftp://host/x", "file://host/x"])
def test_what_can_be_no_place_is_refused(where: str) -> None:
    with pytest.raises(SettingsError):
        CaptureLocation(where)


def test_a_directory_takes_no_options() -> None:
    with pytest.raises(SettingsError, match="a directory takes no options"):
        CaptureLocation("/a", {"anon": True})
