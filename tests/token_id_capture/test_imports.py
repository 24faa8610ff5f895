from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import gym_ray.token_id_capture as package

ROOT = Path(__file__).parents[2]

CODE = """
import importlib, pkgutil, sys
import gym_ray.token_id_capture as package

HEAVY = {"ray", "uvicorn", "torch", "fastapi", "starlette", "aiohttp", "httpx", "requests"}
names = [package.__name__, *(one.name for one in pkgutil.walk_packages(package.__path__, package.__name__ + "."))]
for name in names:
    importlib.import_module(name)
    assert not HEAVY & set(sys.modules), (name, HEAVY & set(sys.modules))
print(len(names))
"""

# Where the contract has each name; the package has every one of them as well.
HOMES = {
    "records": "ParentResolutionStatus TokenEntry compute_digest cumulative_tokens encode_token_ids "
    "extract_token_fields response_to_output_items stamp_lineage strip_token_fields DIGEST_VERSION TOKEN_FIELDS "
    "TOKEN_ENTRY_MIN_SCHEMA_VERSION TOKEN_ENTRY_RECORD_SCHEMA_VERSION UNRESOLVED_PARENT_REASON "
    "UNCOMMITTED_CALL_REASON LEDGER_ROW_MISSING_RESPONSE_ID_REASON LEDGER_ROW_MISSING_CHAIN_HASH_REASON",
    "protocols": "TokenSink TokenSource TokenCaptureSnapshot CaptureProblem",
    "fingerprint": "FINGERPRINT_VERSION assistant_fingerprint conversation_digest canonicalize_tool_arguments",
    "lineage": "LineageMatch LineageResolution LineageResolver CachedLineageResolver FileLineageResolver "
    "InMemoryLineageResolver stamp_continuation",
    "store": "TokenCaptureStore",
    "sink": "CaptureContext NG_CAPTURE_FIELD NG_COMMIT_COORDS_FIELD set_token_sink reset_token_sink "
    "current_capture_context install_token_sink install_token_source install_lineage_store installed_token_sink "
    "installed_token_source installed_lineage_store resolve_parent register_call_intent withdraw_call_intent "
    "capture_tokens commit_entry capture_health_snapshot apply_required_prefix prove_required_prefix",
    "builder": "Chain ChainLink BuildOutput BuildNotes TerminalAttribution run_builder resolve_terminal "
    "project_chain_to_output_items project_main_chain_response assert_prefix_contiguity",
    "delivery": "trajectories_for_rollout trajectories_from_source finalize_rollout_token_capture "
    "capture_build_can_retire retire_rollout_token_capture",
    "request_items": "request_items",
    "rows": "TrainingRow TokenSpan RowWeightSpan training_rows",
    "mask_limit": "MaskLimit",
}
OF_CONFIG = "TokenIdCaptureConfig NonGeneratingRequest build_sink build_lineage_store control_auth_token"


def test_the_package_loads_neither_ray_nor_a_server_nor_torch() -> None:
    run = subprocess.run(
        [sys.executable, "-c", CODE], cwd=ROOT, timeout=60, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 40


@pytest.mark.parametrize("home", HOMES)
def test_a_name_of_the_contract_is_the_same_in_its_module_and_in_the_package(home: str) -> None:
    module = importlib.import_module(f"{package.__name__}.{home}")
    for name in HOMES[home].split():
        assert name in module.__all__
        assert name in package.__all__
        assert getattr(module, name) is getattr(package, name)


def test_the_package_has_the_names_of_the_contract_and_no_others() -> None:
    assert sorted(package.__all__) == sorted(" ".join(HOMES.values()).split())


def test_what_reads_settings_is_imported_by_its_own_name() -> None:
    config = importlib.import_module(f"{package.__name__}.config")
    assert set(OF_CONFIG.split()) <= set(config.__all__)
