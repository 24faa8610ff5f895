"""Settings of where captures go: a directory, or an object store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gym_ray.capture_location import CaptureLocation
from gym_ray.errors import SettingsError
from gym_ray.settings import RunSettings
from gym_ray.settings.loading import load_settings, settings_from_yaml


def load(tmp_path: Path, text: str) -> RunSettings:
    path = tmp_path / "f.yaml"
    path.write_text(text)
    return load_settings([path], environ={})


ON = "observability_enabled: true\n"


def test_an_object_store_is_a_place_of_captures(tmp_path: Path) -> None:
    text = (
        ON + "model_call_capture_dir: s3://bucket/calls\nmodel_call_capture_storage_options: {secret: sesame-street}\n"
    )
    settings = load(tmp_path, text)
    assert settings.capture_location == CaptureLocation("s3://bucket/calls", {"secret": "sesame-street"})
    assert settings.capture_dir is settings.shared_dir is None
    assert settings_from_yaml(settings.to_yaml(), "again") == settings
    assert "sesame-street" not in settings.to_yaml(redact=True) + repr(settings)
    assert settings_from_yaml(settings.to_yaml(redact=True), "again").capture_location is not None


def test_a_directory_may_be_written_as_a_url(tmp_path: Path) -> None:
    settings = load(tmp_path, ON + "model_call_capture_dir: file:///shared/calls\n")
    assert settings.capture_dir == settings.shared_dir == Path("/shared/calls")
    assert settings.capture_location == CaptureLocation("/shared/calls")


def test_a_place_is_not_looked_at_while_capture_is_off(tmp_path: Path) -> None:
    settings = load(tmp_path, "model_call_capture_dir: ftp://nobody/x\n")
    assert settings.capture_location is settings.capture_dir is None


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("model_call_capture_dir: ftp://user:word@host/x\n", ["f.yaml:2: model_call_capture_dir: ", "ftp://"]),
        (
            "model_call_capture_dir: /calls\nmodel_call_capture_storage_options: {secret: word}\n",
            ["f.yaml:3: model_call_capture_storage_options: go with a URL"],
        ),
        ("model_call_capture_dir: /calls\nmodel_call_capture_writer: remote\n", ["f.yaml:3", "'direct' or 'hosted'"]),
    ],
)
def test_what_cannot_work_is_refused_by_its_key(tmp_path: Path, text: str, parts: list[str]) -> None:
    with pytest.raises(SettingsError) as refused:
        load(tmp_path, ON + text)
    for part in parts:
        assert part in str(refused.value)
    assert "word" not in str(refused.value)


@pytest.mark.parametrize("more", ["", "  external_staging: true\n  rebuild_response: false\n"])
def test_token_files_need_a_directory_of_their_own(tmp_path: Path, more: str) -> None:
    text = ON + "model_call_capture_dir: s3://bucket/calls\ntoken_id_capture:\n  enabled: true\n" + more
    with pytest.raises(SettingsError, match=r"f\.yaml:.*token_id_capture\.dir.*set token_id_capture\.dir to a dir"):
        load(tmp_path, text)
    own: dict[str, Any] = {"text": text + "  dir: /tokens\n"}
    if not more:
        assert load(tmp_path, **own).token_dir == Path("/tokens")
