"""Fingerprints and conversation digests (B28-B40): each function, and the one pass that yields both."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

import pytest

from gym_ray.token_id_capture.fingerprint import (
    FINGERPRINT_VERSION,
    ConversationHasher,
    assistant_fingerprint,
    canonicalize_tool_arguments,
    conversation_digest,
)

SECTIONS = {"group": "groups", "single": "singles", "refused": "refused", "arguments": "canonical_arguments"}
MESSAGES = {
    "item_not_object": "item must be an object",
    "unsupported_content": "content must be",
    "unsupported_block": "content block must be",
    "untyped_block": "neither a type nor a text",
    "not_json_serialisable": "no canonical JSON",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for argument in SECTIONS.keys() & set(metafunc.fixturenames):
        document = json.loads((metafunc.config.getoption("--vectors") / "B_fingerprint.json").read_text("utf-8"))
        cases = document[SECTIONS[argument]]
        metafunc.parametrize(argument, cases, ids=[str(case.get("name", case.get("value")))[:40] for case in cases])


def without_thinking(messages: Any, departures: dict[str, Any]) -> Any:
    """The messages as the rule has them fingerprinted: blocks of the named types are not there."""
    kinds = departures["thinking_is_not_in_the_fingerprint"]["block_types"]
    stripped = copy.deepcopy(messages)
    for message in stripped or ():
        if isinstance(message.get("content"), list):
            message["content"] = [
                block for block in message["content"] if not isinstance(block, dict) or block.get("type") not in kinds
            ]
    return stripped


def hashes(messages: Any) -> tuple[str, str]:
    """Both hashes, asserted to be the same in one pass, item by item, and through a copy half-way."""
    separately = assistant_fingerprint(messages), conversation_digest(messages)
    whole = ConversationHasher()
    whole.feed(messages or ())
    assert (whole.fingerprint(), whole.digest()) == separately
    stepwise = ConversationHasher()
    for at, message in enumerate(messages or ()):
        stepwise = stepwise.copy()
        stepwise.feed([message])
        assert stepwise.digest(at) == conversation_digest(messages[:at])
    assert (stepwise.fingerprint(), stepwise.digest(), stepwise.item_count) == (*separately, len(messages or ()))
    return separately


def check(case: dict[str, Any], fingerprint: str, digest: str, departures: dict[str, Any]) -> None:
    found = hashes(case["messages"])
    assert found[1] == digest
    plain = without_thinking(case["messages"], departures)
    if plain == case["messages"]:
        assert found[0] == fingerprint
    else:
        assert found[0] == assistant_fingerprint(plain) != fingerprint


def test_version(document: dict[str, Any]) -> None:
    assert document["version"] == FINGERPRINT_VERSION


def test_preimage_example(document: dict[str, Any]) -> None:
    example = document["preimage_example"]
    fingerprint, digest = (
        hashlib.sha256(bytes.fromhex(example[name])).hexdigest()
        for name in ("fingerprint_preimage_hex", "digest_preimage_hex")
    )
    assert hashes(example["messages"]) == (fingerprint, digest)


def test_group(group: dict[str, Any], departures: dict[str, Any]) -> None:
    fingerprints, digests = set(), set()
    thinking = False
    for variant in group["variants"]:
        check(variant, variant["fingerprint"], variant["digest"], departures)
        found = hashes(variant["messages"])
        fingerprints.add(found[0])
        digests.add(found[1])
        thinking = thinking or without_thinking(variant["messages"], departures) != variant["messages"]
    assert (len(digests) == 1) == group["digests_equal"]
    if not thinking:
        assert (len(fingerprints) == 1) == group["fingerprints_equal"]


def test_single(single: dict[str, Any], departures: dict[str, Any]) -> None:
    check(single, single["fingerprint"]["ok"], single["digest"]["ok"], departures)


def test_refused(refused: dict[str, Any]) -> None:
    for function, outcome in (
        (assistant_fingerprint, refused["fingerprint"]),
        (conversation_digest, refused["digest"]),
    ):
        if "ok" in outcome:
            assert function(refused["messages"]) == outcome["ok"]
        else:
            with pytest.raises(ValueError, match=MESSAGES[outcome["error"]["kind"]]):
                function(refused["messages"])
    if "error" in refused["digest"]:
        hasher = ConversationHasher()
        with pytest.raises(ValueError, match=MESSAGES[refused["digest"]["error"]["kind"]]):
            hasher.feed(refused["messages"])


def test_canonical_arguments(arguments: dict[str, Any]) -> None:
    assert canonicalize_tool_arguments(arguments["value"]) == arguments["canonical"]
