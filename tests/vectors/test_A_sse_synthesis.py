"""A complete answer told as a stream: every event of it, and what the stream adds up to again."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

from gym_ray.dialects.conversion.namespaces import NamespaceMap, restore_names
from gym_ray.dialects.reassembly import reassemble
from gym_ray.dialects.replay import failure_frames, replay_frames

Events = list[dict[str, Any]]
PEER_EVENTS = ("response.created", "response.output_item.done")
PEER_EVENTS += ("response.completed", "response.incomplete", "response.failed")


def test_vector(case: dict[str, Any], departures: dict[str, Any]) -> None:
    check = {"chat": _check_chat, "responses": _check_responses, "messages": _check_messages}
    check.get(case["dialect"], _check_failure)(case, departures)


def _check_chat(case: dict[str, Any], departures: dict[str, Any]) -> None:
    frames = replay_frames("chat", case["answer"], include_usage=case.get("include_usage", False))
    assert _events(frames) == case["expected"]["events"]
    assert reassemble("chat", b"".join(frames)) == case["expected"]["reassembled"]


def _check_responses(case: dict[str, Any], departures: dict[str, Any]) -> None:
    answer, expected = _restored(case), copy.deepcopy(case["expected"])
    terminal, whole = expected["events"][-1], expected["events"][-1]["data"]["response"]
    if not answer.get("status"):
        status = departures["a_missing_status_becomes_completed"]["expected"]["status"]
        whole["status"] = expected["reassembled"]["status"] = status
    if answer.get("status") == "incomplete":
        _check_told(answer, expected, incomplete_event=False)
        name = departures["incomplete_answers_end_with_their_own_event"]["expected"]["terminal"]
        terminal["event"] = terminal["data"]["type"] = name
    _check_told(answer, expected)


def _restored(case: dict[str, Any]) -> dict[str, Any]:
    """A153: names are the client's own before an answer is told."""
    names = {flat: (namespace, name) for flat, (namespace, name) in case.get("namespace_map", {}).items()}
    return restore_names(case["answer"], NamespaceMap(names))


def _check_told(answer: dict[str, Any], expected: dict[str, Any], **switches: bool) -> None:
    """W25: the listed events are among ours, in their order and with their payloads."""
    frames = replay_frames("responses", answer, **switches)
    told = _events(frames)
    assert [event["data"].pop("sequence_number") for event in told] == list(range(len(told)))
    rebuilt = reassemble("responses", b"".join(frames))
    assert rebuilt is not None
    _take_back_added_ids(answer["output"], told, rebuilt)
    named = [event for event in told if event["event"] in PEER_EVENTS]
    assert named == expected["events"]
    assert all(event["event"] == event["data"]["type"] for event in told)
    assert rebuilt == expected["reassembled"]


def _take_back_added_ids(given: list[dict[str, Any]], told: Events, rebuilt: dict[str, Any]) -> None:
    """Give items whose answer has no id for them back the id they came with."""
    for index, item in enumerate(given):
        if item.get("id"):
            continue
        shown = [
            event["data"]["item"]
            for event in told
            if "item" in event["data"] and event["data"]["output_index"] == index
        ]
        for copied in (*shown, told[-1]["data"]["response"]["output"][index], rebuilt["output"][index]):
            assert copied.pop("id")
            copied.update({"id": item["id"]} if "id" in item else {})


def _check_messages(case: dict[str, Any], departures: dict[str, Any]) -> None:
    frames, expected = replay_frames("messages", case["answer"]), copy.deepcopy(case["expected"])
    output = departures["message_start_does_not_know_the_end"]["expected"]["output_tokens"]
    start = expected["events"][0]["data"]["message"]
    start.update(stop_reason=None, stop_sequence=None, usage={**start["usage"], "output_tokens": output})
    starts = [event["data"]["content_block"] for event in expected["events"] if "content_block" in event["data"]]
    rebuilt = expected["reassembled"]["content"]
    for block, start_block, rebuilt_block in zip(case["answer"]["content"], starts, rebuilt, strict=True):
        if block["type"] == "thinking" and block.get("signature") == "":
            start_block["signature"] = rebuilt_block["signature"] = ""
    assert _events(frames) == expected["events"]
    assert reassemble("messages", b"".join(frames)) == expected["reassembled"]


def _check_failure(case: dict[str, Any], departures: dict[str, Any]) -> None:
    dialect = case["dialect"].removesuffix("_failure")
    told = _events(failure_frames(dialect, status=500, message=case["message"]))
    assert [event["data"].pop("sequence_number") for event in told] == list(range(len(told)))
    names = {event["data"]["response"].pop("id") for event in told}
    assert len(names) == 1
    assert re.fullmatch("resp_[0-9a-f]{32}", names.pop())
    for event in case["expected"]["events"]:
        assert event["data"]["response"].pop("id") == "resp_<hex32>"
    assert told == case["expected"]["events"]


def _events(frames: list[bytes]) -> Events:
    """Read frames that are written exactly as A134 says."""
    found = []
    for frame in frames:
        match = re.fullmatch(rb"(?:event: ([a-z_.]+)\n)?data: ([\x20-\x7e]+)\n\n", frame)
        assert match, frame
        name, data = match.groups()
        payload = "[DONE]" if data == b"[DONE]" else json.loads(data)
        found.append({"event": name.decode() if name else None, "data": payload})
    return found
