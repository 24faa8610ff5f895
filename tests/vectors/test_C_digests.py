"""Hashes of staged calls (C80-C89), from lists and from arrays of several types."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest

from gym_ray.testing.spelled_values import as_array, spelled
from gym_ray.token_id_capture.staging import constants
from gym_ray.token_id_capture.staging.columns import Column
from gym_ray.token_id_capture.staging.digests import (
    compute_chain_hash,
    compute_extras_digest,
    compute_prefix_hash,
    compute_staging_digest,
)

SECTIONS = ("prefix", "chain", "staging")
COLUMNS = ("token_ids_delta", "token_mask_delta", "generation_log_probs_delta")
ERRORS = {"ValueError": ValueError, "TypeError": TypeError, "UnicodeEncodeError": ValueError}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for section in set(SECTIONS) & set(metafunc.fixturenames):
        cases = json.loads((metafunc.config.getoption("--vectors") / "C_digests.json").read_text("utf-8"))[section]
        metafunc.parametrize(section, cases, ids=[case["id"] for case in cases])
    if "form" in metafunc.fixturenames:
        metafunc.parametrize("form", ["list", "array", "big_endian", "strided", "column"])


def in_form(values: Any, form: str) -> Any:
    """The values of a plain list in another form; a list that no array can stand for stays one."""
    array = None if form == "list" else as_array(values)
    if array is None:
        return values
    if form == "big_endian":
        return array.astype(array.dtype.newbyteorder(">"))
    if form == "strided":
        return np.repeat(array, 2)[::2]
    return Column(array) if form == "column" else array


def test_versions(document: dict[str, Any]) -> None:
    assert document["versions"] == {
        "schema": constants.STAGING_SCHEMA_VERSION,
        "digest": constants.STAGING_DIGEST_VERSION,
        "extras_digest": constants.EXTRAS_DIGEST_VERSION,
    }
    assert document["empty_extras_digest"] == constants.NO_EXTRAS_DIGEST == compute_extras_digest(None)


def test_prefix(prefix: dict[str, Any], form: str) -> None:
    ids = in_form(spelled(prefix["token_ids"]), form)
    if "error" in prefix:
        with pytest.raises(ERRORS[prefix["error"]], match=r"token ids?\b"):
            compute_prefix_hash(ids)
        return
    assert compute_prefix_hash(ids) == prefix["ok"]
    if prefix.get("encoded_hex") is not None:
        preimage = constants.PREFIX_HASH_DOMAIN + bytes.fromhex(prefix["encoded_hex"])
        assert hashlib.sha256(preimage).hexdigest() == prefix["ok"]


def test_chain(chain: dict[str, Any], form: str) -> None:
    parent, ids = chain["parent"], in_form(spelled(chain["token_ids"]), form)
    if "error" in chain:
        with pytest.raises(ERRORS[chain["error"]], match="parent_chain_hash"):
            compute_chain_hash(parent, ids)
        return
    assert compute_chain_hash(parent, ids) == chain["ok"]


def test_staging(staging: dict[str, Any], form: str) -> None:
    fields = spelled(staging["input"])
    fields.update({name: in_form(fields[name], form) for name in COLUMNS})
    if "error" in staging:
        with pytest.raises(ERRORS[staging["error"]]):
            compute_staging_digest(**fields)
        return
    assert compute_staging_digest(**fields) == staging["ok"]
    if staging.get("preimage_hex") is not None:
        preimage = bytes.fromhex(staging["preimage_hex"])
        assert len(preimage) == staging["preimage_len"]
        assert hashlib.sha256(preimage).hexdigest() == staging["ok"]


def test_values_are_read_as_they_are_stored(staging: dict[str, Any]) -> None:
    """A mask of truth values and log probabilities of float32 give the digest of the list that they stand for."""
    fields = spelled(staging["input"])
    mask, log_probs = (as_array(fields[name]) for name in COLUMNS[1:])
    if "error" in staging or mask is None or log_probs is None or np.signbit(mask).any():
        return
    stored = {"token_mask_delta": mask != 0, "generation_log_probs_delta": log_probs.astype(np.float32)}
    assert compute_staging_digest(**{**fields, **stored}) == staging["ok"]
