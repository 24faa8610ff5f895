"""Encoding and digest of token sequences (B9-B12), from lists and from every kind of integer buffer."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from gym_ray.token_id_capture import fingerprint, records
from gym_ray.token_id_capture.token_arrays import digest_packed, encode_packed, join_tokens, pack_token_ids

SECTIONS = {"small": "token_ids", "large": "n", "splits": "prompt", "refused": "token_ids"}
FORMS: dict[str, Callable[[Sequence[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "array": lambda ids: array("Q", ids),
    "memoryview": lambda ids: memoryview(array("Q", ids)),
    "uint64": lambda ids: np.array(ids, np.uint64),
    "big_endian": lambda ids: np.array(ids, ">u8"),
    "strided": lambda ids: np.repeat(np.array(ids, np.uint64), 2)[::2],
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for section in SECTIONS.keys() & set(metafunc.fixturenames):
        cases = json.loads((metafunc.config.getoption("--vectors") / "B_digest.json").read_text("utf-8"))[section]
        metafunc.parametrize(section, cases, ids=[str(case[SECTIONS[section]])[:40] for case in cases])
    if "form" in metafunc.fixturenames:
        metafunc.parametrize("form", FORMS)


def test_constants(document: dict[str, Any]) -> None:
    constants = document["constants"]
    assert constants["domain_ascii"].encode() == records._DIGEST_DOMAIN
    assert constants["empty_digest"] == records._EMPTY_DIGEST == records.compute_digest([])
    assert tuple(constants["TOKEN_FIELDS"]) == records.TOKEN_FIELDS
    for name in ("DIGEST_VERSION", "TOKEN_ENTRY_RECORD_SCHEMA_VERSION", "TOKEN_ENTRY_MIN_SCHEMA_VERSION"):
        assert getattr(records, name) == constants[name]
    assert constants["FINGERPRINT_VERSION"] == fingerprint.FINGERPRINT_VERSION
    assert (
        hashlib.sha256(records._DIGEST_DOMAIN + records.encode_token_ids([])).hexdigest()
        == (document["not_the_empty_digest"])
    )


def test_small(small: dict[str, Any], form: str) -> None:
    ids = FORMS[form]([int(text) for text in small["token_ids"]])
    assert records.encode_token_ids(ids).hex() == small["encode_hex"]
    assert records.compute_digest(ids) == small["digest"]


def test_large(large: dict[str, Any], form: str) -> None:
    ids = FORMS[form]([(i * 7919 + 13) % 151936 for i in range(large["n"])])
    encoded = records.encode_token_ids(ids)
    assert len(encoded) == large["encode_len"]
    assert hashlib.sha256(encoded).hexdigest() == large["encode_sha256"]
    assert records.compute_digest(ids) == large["digest"]


def test_a_packed_sequence_has_the_same_bytes(large: dict[str, Any]) -> None:
    ids = pack_token_ids([(i * 7919 + 13) % 151936 for i in range(large["n"])])
    assert hashlib.sha256(encode_packed(ids)).hexdigest() == large["encode_sha256"]
    assert digest_packed(ids) == large["digest"]


def test_a_split_does_not_matter(splits: dict[str, Any], form: str) -> None:
    prompt, generation = (FORMS[form](splits[name]) for name in ("prompt", "generation"))
    joined = join_tokens([pack_token_ids(prompt), pack_token_ids(generation)])
    assert digest_packed(joined) == splits["digest_of_concatenation"]
    assert records.compute_digest([*splits["prompt"], *splits["generation"]]) == splits["digest_of_concatenation"]


def _refused_ids(case: dict[str, Any]) -> list[Any]:
    """The ids; they stand as text, so that no reader rounds them, except in the case about text itself."""
    as_given = case["peer_error_class"] == "TypeError"
    return [value if as_given or isinstance(value, float) else int(value) for value in case["token_ids"]]


@pytest.mark.parametrize("function", [records.encode_token_ids, records.compute_digest, pack_token_ids])
def test_refused(refused: dict[str, Any], departures: dict[str, Any], function: Callable[[Any], Any]) -> None:
    rule = departures["bad_token_ids_are_value_errors"]
    assert refused["peer_error_class"] in ["ValueError", *rule["peer_error_classes"]]
    ids = _refused_ids(refused)
    negative = [value for value in ids if isinstance(value, int) and value < 0]
    named = (negative or [value for value in ids if not isinstance(value, int) or value >= 2**64])[0]
    with pytest.raises(ValueError, match=f"token id {named!r} at index {ids.index(named)}"):
        function(ids)
    with pytest.raises(ValueError, match=r"token ids? "):
        function(np.array(ids))
