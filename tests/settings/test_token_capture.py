from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gym_ray.errors import SettingsError
from gym_ray.settings.token_capture import (
    NonGeneratingRequest,
    TokenCaptureSettings,
    TokenIdCaptureConfig,
    check_token_capture,
)

ROOT = Path("/data/calls")


def config(**members: Any) -> TokenIdCaptureConfig:
    return TokenIdCaptureConfig(**{"enabled": True, **members})


def test_nothing_is_captured_unless_asked_for() -> None:
    settings = TokenCaptureSettings.model_validate({"servers": 5})
    assert not settings.token_id_capture.enabled
    assert settings.token_id_capture.delta_records
    assert settings.token_id_capture.on_unproven_prefix == "mark"


@pytest.mark.parametrize(
    ("members", "word"),
    [
        ({"max_mask_fraction": 1.01}, "max_mask_fraction"),
        ({"max_mask_fraction": -0.1}, "max_mask_fraction"),
        ({"max_mask_fraction": True}, "max_mask_fraction"),
        ({"max_mask_fraction": float("nan")}, "max_mask_fraction"),
        ({"mask_fraction_min_samples": 0}, "mask_fraction_min_samples"),
        ({"mask_fraction_window": 0}, "mask_fraction_window"),
        ({"mask_fraction_window": 49}, "mask_fraction_min_samples"),
        ({"on_unproven_prefix": "ignore"}, "on_unproven_prefix"),
        ({"external_staging_backend": "other"}, "external_staging_backend"),
        ({"sink": ""}, "sink"),
        ({"sink_kwargs": [1]}, "sink_kwargs"),
        ({"delta_record": True}, "delta_record"),
    ],
)
def test_a_value_out_of_its_range_is_refused_even_when_capture_is_off(members: dict[str, Any], word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        TokenIdCaptureConfig(**members)


@pytest.mark.parametrize("fraction", [0, 1, 0.5, "0.5"])
def test_both_ends_of_the_range_are_fractions(fraction: Any) -> None:
    assert config(max_mask_fraction=fraction).max_mask_fraction == float(fraction)


def test_the_first_contradiction_of_the_order_is_named() -> None:
    with pytest.raises(ValidationError, match="set enabled to true"):
        TokenIdCaptureConfig(external_staging=True)
    with pytest.raises(ValidationError, match="set rebuild_response to false"):
        config(external_staging=True, external_staging_backend="megatron_worker")
    with pytest.raises(ValidationError, match="megatron_worker works with"):
        config(external_staging_backend="megatron_worker")
    assert config(external_staging=True, rebuild_response=False, external_staging_backend="megatron_worker")


def test_kwargs_show_in_no_representation() -> None:
    shown = repr(config(sink="m:S", sink_kwargs={"password": "hunter22"}, lineage_store_kwargs={"key": "hunter22"}))
    assert "hunter22" not in shown


def test_the_directory_of_model_calls_is_shared() -> None:
    assert config().resolved_dir(ROOT) == ROOT
    assert config(dir="/data/tokens").resolved_dir(ROOT) == Path("/data/tokens")
    assert check_token_capture(config(), ROOT) == []


def test_settings_of_a_block_that_is_off_are_remarked_upon() -> None:
    assert check_token_capture(TokenIdCaptureConfig(), None) == []
    (remark,) = check_token_capture(TokenIdCaptureConfig(dir="x"), None)
    assert "set token_id_capture.enabled to true" in remark


def test_capture_that_has_nowhere_to_go_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"file\.yaml: token_id_capture\.dir: .* nowhere to go; set"):
        check_token_capture(config(), None, where="file.yaml")
    assert check_token_capture(config(rebuild_response=False), None) == []


@pytest.mark.parametrize(
    ("members", "capture_dir", "key"),
    [({"dir": "x/y"}, ROOT, "token_id_capture.dir"), ({}, Path("calls"), "model_call_capture_dir")],
)
def test_a_relative_directory_is_named_by_its_key(members: dict[str, Any], capture_dir: Path, key: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check_token_capture(config(**members), capture_dir)
    assert caught.value.key == key


def test_an_installed_sink_needs_no_directory_but_a_lineage_store() -> None:
    with pytest.raises(SettingsError, match="lineage_store"):
        check_token_capture(config(), None, sink_installed=True)
    assert check_token_capture(config(), None, sink_installed=True, lineage_installed=True) == []
    assert check_token_capture(config(lineage_store="m:L"), None, sink_installed=True) == []
    with pytest.raises(SettingsError, match="behind the installed sink"):
        check_token_capture(config(dir="/data"), None, sink_installed=True)


def test_what_is_likely_not_meant_is_told() -> None:
    remarks = check_token_capture(config(sink="m:S", dir="rel", allow_unresolved_continuations=True), None)
    assert len(remarks) == 2
    assert "dir is not used" in remarks[0]
    assert "will be masked" in remarks[1]


def test_a_validation_context_says_what_is_installed() -> None:
    block = {"token_id_capture": {"enabled": True}}
    with pytest.raises(ValidationError, match="nowhere to go"):
        TokenCaptureSettings.model_validate(block)
    context = {"sink_installed": True, "lineage_installed": True}
    assert TokenCaptureSettings.model_validate(block, context=context).token_id_capture.enabled


def test_a_request_that_generates_nothing_is_one_exact_request() -> None:
    request = NonGeneratingRequest(method="post", path="/v1/embeddings")  # the method is written in any case
    assert (request.method, request.path) == ("POST", "/v1/embeddings")
    with pytest.raises(ValidationError, match="exact path"):
        NonGeneratingRequest(method="GET", path="/a{b}")
    with pytest.raises(ValidationError, match="in letters alone"):
        NonGeneratingRequest(method="GET\n", path="/a")
