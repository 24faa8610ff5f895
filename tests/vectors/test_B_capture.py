"""Capture of one call and of several (B74-B93): from lists, from arrays, and from what an engine says beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gym_ray.testing.token_sinks import NotingTokenSink, PlainTokenSink
from gym_ray.token_id_capture import sink as capture
from gym_ray.token_id_capture.assembly import trajectories_from_source
from gym_ray.token_id_capture.call_capture import TokenCapture
from gym_ray.token_id_capture.exact_tokens import ExactTokens
from gym_ray.token_id_capture.records import (
    TokenEntry,
    extract_token_fields,
    strip_token_fields,
)
from gym_ray.token_id_capture.resolution.memory_resolver import InMemoryLineageResolver
from gym_ray.token_id_capture.resolution.resolvers import FileLineageResolver
from gym_ray.token_id_capture.store import TokenCaptureStore
from gym_ray.token_id_capture.token_arrays import pack_log_probs, pack_token_ids

ARRAYS = {"prompt_token_ids": np.int64, "generation_token_ids": np.int64, "generation_log_probs": np.float32}
SECTIONS = {"single": "single", "multi": "multi_turn", "rerendered": "rerender", "other": "other", "install": "install"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for argument in SECTIONS.keys() & set(metafunc.fixturenames):
        document = json.loads((metafunc.config.getoption("--vectors") / "B_capture.json").read_text("utf-8"))
        cases = document[SECTIONS[argument]]
        metafunc.parametrize(argument, cases, ids=[case.get("name") or case["delta_records"] for case in cases])
    if "form" in metafunc.fixturenames:
        metafunc.parametrize("form", ["list", "array", "model", "beside"])


def in_form(response: Any, form: str) -> Any:
    """The answer with its token fields as arrays, or as an object with ``model_dump``."""
    if form == "array":
        return _with_arrays(response)
    return _Model(response) if form == "model" and isinstance(response, dict) else response


class _Model:
    def __init__(self, members: dict[str, Any]) -> None:
        self._members = members

    def model_dump(self) -> dict[str, Any]:
        return self._members


def _with_arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _array(item, ARRAYS[name]) if name in ARRAYS and isinstance(item, list) else _with_arrays(item)
            for name, item in value.items()
        }
    return [_with_arrays(item) for item in value] if isinstance(value, list) else value


def _array(values: list[Any], dtype: Any) -> Any:
    made = np.array(values)
    fits = made.ndim == 1 and made.dtype.kind in "iuf" and np.array_equal(made.astype(dtype), made)
    return made.astype(dtype) if fits else values


def beside(response: Any) -> tuple[Mapping[str, Any], ExactTokens] | None:
    """The answer without tokens and the tokens by themselves, where an engine could have said them so."""
    try:
        fields = extract_token_fields(response)
        assert fields is not None
        exact = ExactTokens(
            pack_token_ids(fields["prompt_token_ids"]),
            pack_token_ids(fields["generation_token_ids"]),
            pack_log_probs(fields["generation_log_probs"]),
            fields["routed_experts"],
        )
    except (AssertionError, AttributeError, TypeError, ValueError):
        return None
    bare = dict(response)
    if isinstance(bare.get("output"), list):
        bare["output"] = strip_token_fields(bare["output"])[0]
    if isinstance(bare.get("choices"), list):
        bare["choices"] = [
            {**choice, "message": strip_token_fields([choice["message"]])[0][0]} for choice in bare["choices"]
        ]
    return bare, exact


def said(entry: TokenEntry, wanted: dict[str, Any]) -> dict[str, Any]:
    dumped = entry.model_dump(mode="json")
    return {name: dumped[name] for name in wanted}


def engine_entry() -> TokenEntry:
    content = [{"type": "output_text", "text": "say c0"}]
    return TokenEntry(
        rollout_id="r0",
        model_call_id="c0",
        model="m",
        prompt_token_ids=[1, 2],
        generation_token_ids=[3],
        generation_log_probs=[-0.25],
        output_items=[{"type": "message", "role": "assistant", "content": content}],
        token_item_index=0,
    )


async def test_single(single: dict[str, Any], form: str) -> None:
    name = single["name"]
    token_sink = PlainTokenSink()
    if "put" in name and "fail" in name:
        token_sink.failures["put"] = OSError("disk")
    if "mark_fail" in name:
        token_sink.failures["mark_incomplete"] = OSError("disk")
    context = capture.CaptureContext(
        "r0",
        "c0",
        None if name.startswith("no_sink") else token_sink,
        InMemoryLineageResolver(),
        model="ctx" if name.startswith("context_model") else "",
        committed=name.startswith("already_committed"),
    )
    token = None if name == "no_context" else capture.set_token_sink(context)
    before = capture.capture_health_snapshot()["capture_failures"]
    try:
        if name.startswith("engine_commit"):
            await capture.commit_entry(engine_entry())
        alone = beside(single["response"]) if form == "beside" else None
        if alone is not None and token is not None:
            failures = await _beside(context, *alone, single["request_items"])
        else:
            await capture.capture_tokens(in_form(single["response"], form), single["request_items"])
            failures = capture.capture_health_snapshot()["capture_failures"] - before
    finally:
        if token is not None:
            capture.reset_token_sink(token)
    wanted = [{**entry, "token_item_index": None} if alone is not None else dict(entry) for entry in single["entries"]]
    assert [said(entry, want) for entry, want in zip(token_sink.entries, wanted, strict=True)] == wanted
    assert [list(mark) for mark in token_sink.marks] == single["marks"]
    assert context.committed == single["committed"]
    assert failures == single["failures_counted"]
    decision = context.parent_resolution
    assert (decision and [str(decision.status), decision.reason]) == single["resolution"]


async def _beside(
    context: capture.CaptureContext, response: Mapping[str, Any], tokens: ExactTokens, items: list[Any] | None
) -> int:
    """Commit as a model server does, and return how many failures were counted."""
    kept = TokenCapture(context.token_sink, context.lineage_store, owns_sink=False)
    call = kept.begin("r0", "c0", model=context.model)
    call.context.committed = context.committed
    await call.resolve(items)
    await call.commit(response, tokens)
    if context.token_sink is not None:
        context.token_sink.failures.clear()  # type: ignore[attr-defined]  # a sink of ours
        marks = list(context.token_sink.marks)  # type: ignore[attr-defined]
        await kept.aclose()  # what the sink refused is marked now
        context.token_sink.marks[:] = marks  # type: ignore[attr-defined]
    else:
        await kept.aclose()
    context.committed, context.parent_resolution = call.context.committed, call.context.parent_resolution
    counted: int = kept.health.snapshot()["capture_failures"]
    return counted


async def _turn(
    store: TokenCaptureStore, resolver: FileLineageResolver, number: int, turn: dict[str, Any], *, delta: bool
) -> capture.CaptureContext:
    context = capture.CaptureContext("r0", f"c{number}", store, resolver, delta_records=delta)
    token = capture.set_token_sink(context)
    text = {"type": "output_text", "text": f"A{number}"}
    item = {
        "type": "message",
        "role": "assistant",
        "content": [text],
        "prompt_token_ids": turn["prompt"],
        "generation_token_ids": turn["generation"],
        "generation_log_probs": [-0.5, -0.25],
    }
    try:
        await capture.resolve_parent(turn["request_items"])
        await capture.register_call_intent()
        response = {"id": f"resp_{number}", "output": [_with_arrays(item) if turn["arrays"] else item]}
        await capture.capture_tokens(response, turn["request_items"])
    finally:
        capture.reset_token_sink(token)
    return context


@pytest.mark.parametrize("arrays", [False, True])
async def test_multi_turn(multi: dict[str, Any], arrays: bool, tmp_path: Path) -> None:
    store = TokenCaptureStore(tmp_path)
    resolver = FileLineageResolver(store)
    for number, turn in enumerate(multi["turns"]):
        context = await _turn(store, resolver, number, {**turn, "arrays": arrays}, delta=multi["delta_records"])
        assert context.parent_tokens == turn["parent_tokens_offered"]
        assert context.parent_call_id == turn["parent_call_id"]
        assert context.committed
    entries = store.read_entries("r0")
    assert [said(entry, want) for entry, want in zip(entries, multi["entries"], strict=True)] == multi["entries"]
    build = await trajectories_from_source("r0", store)
    await resolver.close()
    await store.close()
    assert build["mask_sample"] == multi["mask_sample"]
    assert {name: build["metrics"].get(name) for name in multi["metrics"]} == multi["metrics"]
    assert build["metrics"].get("capture_incomplete", False) == multi["incomplete"]
    output = build["rebuilt_response"]["output"]
    assert [list(item["prompt_token_ids"]) for item in output] == multi["output_prompts"]
    assert [list(item["generation_token_ids"]) for item in output] == multi["output_generations"]


async def test_rerender(rerendered: dict[str, Any], document: dict[str, Any], tmp_path: Path) -> None:
    first, second = (dict(turn, arrays=False) for turn in document["multi_turn"][0]["turns"][:2])
    second["prompt"] = rerendered["second"]["prompt_token_ids"]
    store = TokenCaptureStore(tmp_path)
    resolver = FileLineageResolver(store)
    for number, turn in enumerate((first, second)):
        await _turn(store, resolver, number, turn, delta=True)
    assert said(store.read_entries("r0")[1], rerendered["second"]) == rerendered["second"]
    build = await trajectories_from_source("r0", store)
    await resolver.close()
    await store.close()
    assert build["mask_sample"] == rerendered["mask_sample"]
    assert {name: build["metrics"].get(name) for name in rerendered["metrics"]} == rerendered["metrics"]


class _BrokenResolver(InMemoryLineageResolver):
    async def resolve(self, rollout_id: str, request_items: Any) -> Any:
        raise OSError("gone")


async def test_other(
    other: dict[str, Any], document: dict[str, Any], departures: dict[str, Any], tmp_path: Path
) -> None:
    turn = {**document["multi_turn"][0]["turns"][0], "arrays": False}
    store = TokenCaptureStore(tmp_path)
    resolver = FileLineageResolver(store)
    try:
        if other["name"] == "engine_commit_then_tokens_on_response":
            await _engine_commits_first(store, document)
            assert (await store.freeze("r0")).incomplete == _expected(other, departures)["incomplete"]
        elif other["name"] == "backend_error_then_successful_retry":
            await _withdrawn(store)
            await _turn(store, resolver, 1, turn, delta=True)
            snapshot = await store.freeze("r0")
            assert [entry.model_call_id for entry in snapshot.entries] == other["calls"]
            assert snapshot.incomplete == _expected(other, departures)["incomplete"]
        elif other["name"] == "resolver_raises":
            await _unanswered_look_up(_expected(other, departures))
        else:
            assert other == {"name": "begin_call_raises", "propagates": True}
            await _refused_note()
    finally:
        await resolver.close()
        await store.close()


def _expected(case: dict[str, Any], departures: dict[str, Any]) -> dict[str, Any]:
    for rule in departures.values():
        if rule["file"] == "B_capture.json" and case["name"] in rule["ids"]:
            return case | rule["expected"]
    return case


async def _engine_commits_first(store: TokenCaptureStore, document: dict[str, Any]) -> None:
    good = next(case for case in document["single"] if case["name"] == "good_with_request")
    token = capture.set_token_sink(capture.CaptureContext("r0", "c0", store))
    await capture.commit_entry(engine_entry())
    await capture.capture_tokens(good["response"], good["request_items"])
    capture.reset_token_sink(token)


async def _withdrawn(store: TokenCaptureStore) -> None:
    token = capture.set_token_sink(capture.CaptureContext("r0", "c0", store))
    await capture.register_call_intent()
    await capture.withdraw_call_intent("the engine answered 500")
    capture.reset_token_sink(token)


async def _unanswered_look_up(expected: dict[str, Any]) -> None:
    before = capture.capture_health_snapshot()["resolutions"]["unresolved"]
    context = capture.CaptureContext("r0", "c0", NotingTokenSink(), _BrokenResolver())
    token = capture.set_token_sink(context)
    await capture.resolve_parent([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])
    capture.reset_token_sink(token)
    decision = context.parent_resolution
    assert decision is not None
    assert (str(decision.status), decision.reason) == (expected["status"], expected["reason"])
    assert capture.capture_health_snapshot()["resolutions"]["unresolved"] - before == expected["counted"]


async def _refused_note() -> None:
    token_sink = NotingTokenSink()
    token_sink.failures["begin_call"] = OSError("disk")
    token = capture.set_token_sink(capture.CaptureContext("r0", "c0", token_sink))
    with pytest.raises(OSError, match="disk"):
        await capture.register_call_intent()
    capture.reset_token_sink(token)


class _NoMark:
    async def put(self, entry: TokenEntry) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


def test_install(install: dict[str, Any]) -> None:
    if install["name"] == "none":
        capture.install_token_sink(None)
        assert capture.installed_token_sink() is install["ok"]
    else:
        assert install["error"] == {"class": "TypeError", "kind": "sink_lacks_methods"}
        with pytest.raises(TypeError, match="lacks mark_incomplete"):
            capture.install_token_sink(_NoMark())  # type: ignore[arg-type]  # what is refused
