from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gym_ray.cli.capture_settings import capture_differences, capture_settings
from gym_ray.cli.found_servers import FoundServers, Head
from gym_ray.errors import SettingsError
from gym_ray.server_directory import Endpoint, ServerDirectory
from gym_ray.settings import RunSettings

CALLS = {"observability_enabled": True, "model_call_capture_dir": "/calls"}
BLOCK = {"enabled": True, "dir": "/tokens"}
IN_SINK = {"enabled": True, "sink": "m:Sink", "lineage_store": "m:Lineage"}


def settings(block: dict[str, Any] | None = None, **members: Any) -> RunSettings:
    return RunSettings(token_id_capture=block or {}, **members)


def differences(ours: RunSettings, theirs: RunSettings) -> dict[str, str]:
    found = capture_differences(capture_settings(ours), capture_settings(theirs), "h:1")
    return {error.key: str(error) for error in found}


@pytest.mark.parametrize("made", [settings(), settings(**CALLS), settings(BLOCK, **CALLS), settings(IN_SINK)])
def test_equal_settings_agree(made: RunSettings) -> None:
    assert differences(made, made) == {}


def test_what_the_collector_alone_uses_may_differ() -> None:
    for_collector = {"training_rows": "all", "retire_after_delivery": False, "max_mask_fraction": 0.5, "source": "m:S"}
    assert differences(settings({**BLOCK, **for_collector}), settings(BLOCK)) == {}


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"all_agents": True}, ("true", "false")),
        ({"dir": "/other"}, ("/other", "/tokens")),
        ({"delta_records": False}, ("false", "true")),
        ({"on_unproven_prefix": "fail"}, ("fail", "mark")),
    ],
)
def test_each_setting_that_servers_act_on_is_named_with_both_values(
    change: dict[str, Any], shown: tuple[str, str]
) -> None:
    (key,) = change
    (message,) = differences(settings({**BLOCK, **change}), settings(BLOCK)).values()
    here, there = shown
    assert message == (
        f"command line: token_id_capture.{key}: is {here} here and {there} at the servers of h:1; "
        f"pass ++token_id_capture.{key}={there} here, or start the servers with the value of here"
    )


def test_both_sides_know_whether_the_workers_keep_the_tokens() -> None:
    here = settings({**BLOCK, "external_staging": True, "rebuild_response": False})
    assert set(differences(here, settings({**BLOCK, "rebuild_response": False}))) == {
        "token_id_capture.external_staging"
    }


def test_a_difference_that_follows_from_another_is_left_out() -> None:
    assert set(differences(settings(BLOCK), settings())) == {"token_id_capture.enabled"}
    assert set(differences(settings(), settings(BLOCK, **CALLS))) == {
        "token_id_capture.enabled",
        "observability_enabled",
    }
    assert set(differences(settings(IN_SINK), settings(BLOCK))) == {"token_id_capture.sink"}
    other = {**IN_SINK, "lineage_store": "m:Other"}
    assert set(differences(settings(IN_SINK), settings(other))) == {"token_id_capture.lineage_store"}


def test_the_directory_of_tokens_may_be_that_of_model_calls() -> None:
    shared = settings({"enabled": True}, model_call_capture_dir=Path("/tokens"))
    assert differences(shared, settings(BLOCK)) == {}


def test_a_collection_says_all_that_differs_before_it_starts() -> None:
    theirs = settings(BLOCK, **CALLS)
    head = Head(ServerDirectory({"m": [Endpoint("a", "http://h:2")]}, {}), "token")
    found = FoundServers("h:1", theirs, head, capture_settings(theirs))
    assert found.joined(settings(BLOCK, **CALLS))[1] == head
    ours = settings({**BLOCK, "dir": "/mine", "all_agents": True}, **CALLS)
    with pytest.raises(SettingsError) as refused:
        found.joined(ours)
    lines = str(refused.value).splitlines()
    assert [line.split(": ")[1] for line in lines] == ["token_id_capture.all_agents", "token_id_capture.dir"]
    with pytest.raises(SettingsError, match="observability_enabled: is false here and true at the servers"):
        found.joined(settings(BLOCK))


def test_places_in_object_stores_are_compared_without_their_credentials() -> None:
    def at(url: str) -> RunSettings:
        return settings(observability_enabled=True, model_call_capture_dir=url)

    assert differences(at("s3://key:word@bucket/calls"), at("s3://bucket/calls")) == {}
    (shown,) = differences(at("s3://key:word@bucket/mine"), at("s3://bucket/calls")).values()
    assert "s3://bucket/mine" in shown
    assert "word" not in shown
