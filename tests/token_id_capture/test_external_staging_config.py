"""What a model server is given when its workers keep the tokens (C203, C220, C240)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gym_ray.errors import SettingsError
from gym_ray.settings.token_capture import check_token_capture
from gym_ray.token_id_capture.config import (
    TokenIdCaptureConfig,
    build_external_staging,
    build_token_capture,
    build_token_source,
)

MEMORY = "gym_ray.token_id_capture.staging.ledger.memory_ledger:MemoryCaptureLedger"
FILES = "gym_ray.token_id_capture.staging.ledger.file_ledger:FileCaptureLedger"
RESOLVER = "gym_ray.token_id_capture.resolution.memory_resolver:InMemoryLineageResolver"


def config(**members: Any) -> TokenIdCaptureConfig:
    return TokenIdCaptureConfig(**{"enabled": True, "external_staging": True, "rebuild_response": False, **members})


async def test_the_ledger_is_a_directory_that_processes_share(tmp_path: Path) -> None:
    made = build_external_staging(
        config(external_staging_backend="megatron_worker"), capture_dir=tmp_path, control_token="secret", workers=2
    )
    assert made is not None
    assert (made.backend, made.control_token) == ("megatron_worker", "secret")
    assert "secret" not in repr(made)
    await made.ledger.record_failure("r0", "c0", "why")
    await made.aclose()
    assert (tmp_path / "r0.lineage.jsonl").exists()


def test_it_stands_in_for_every_other_part() -> None:
    assert build_token_capture(config(), capture_dir=None) is None
    assert build_token_source(config(), None) is None


@pytest.mark.parametrize("off", [{"enabled": False, "external_staging": False}, {"external_staging": False}])
def test_nothing_is_built_while_it_is_off(off: dict[str, Any], tmp_path: Path) -> None:
    assert build_external_staging(config(**off), capture_dir=tmp_path, control_token=None) is None


@pytest.mark.parametrize("token", [None, ""])
def test_no_server_starts_without_its_control_token(token: str | None, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="MY_TOKEN should hold it; set it where the run starts"):
        build_external_staging(config(control_auth_token_env="MY_TOKEN"), capture_dir=tmp_path, control_token=token)
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_needs_a_place() -> None:
    with pytest.raises(SettingsError, match=r"token_id_capture\.dir: the ledger of staged calls has nowhere to go"):
        build_external_staging(config(), capture_dir=None, control_token="secret")


def test_a_ledger_that_forgets_is_refused() -> None:
    with pytest.raises(SettingsError, match="MemoryCaptureLedger forgets rows"):
        build_external_staging(config(lineage_store=MEMORY), capture_dir=None, control_token="secret")


def test_a_lineage_store_that_is_no_ledger_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"token_id_capture\.lineage_store: .* lacks record, record_failure"):
        build_external_staging(config(lineage_store=RESOLVER), capture_dir=None, control_token="secret")


async def test_a_ledger_is_named_and_made_like_every_plug_in(tmp_path: Path) -> None:
    named = config(lineage_store=FILES, lineage_store_kwargs={"root": str(tmp_path)})
    made = build_external_staging(named, capture_dir=None, control_token="secret")
    assert made is not None
    await made.ledger.record_failure("r0", "c0", "why")
    await made.aclose()
    assert (tmp_path / "r0.lineage.jsonl").exists()


def test_what_means_nothing_is_remarked(tmp_path: Path) -> None:
    odd = config(source="m:S")
    assert check_token_capture(odd, tmp_path) == [
        "token_id_capture.source is not used: the inference workers keep the tokens",
    ]


@pytest.mark.parametrize("rows", ["main", "all"])
def test_training_rows_cannot_come_from_tokens_that_the_workers_keep(rows: str) -> None:
    with pytest.raises(ValidationError, match="no record can hold training rows: set training_rows to none"):
        config(training_rows=rows)
    assert config(training_rows="none").training_rows == "none"


def test_no_server_starts_with_a_control_token_that_could_not_be_redacted(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="has 3 characters, too few"):
        build_external_staging(config(), capture_dir=tmp_path, control_token="abc")
    assert list(tmp_path.iterdir()) == []
