from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gym_ray.correlation import derive_rollout_id
from gym_ray.errors import DamagedRecordError, RecordConflictError, RolloutFrozenError, RolloutRetiredError
from gym_ray.testing.token_store_model import ModelRefusal, TokenStoreModel
from gym_ray.token_id_capture.protocols import TokenCaptureSnapshot
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.store import TokenCaptureStore

ROLLOUT = "r0"
RAISED = {
    "retired": RolloutRetiredError,
    "frozen": RolloutFrozenError,
    "call_id_reused": RecordConflictError,
    "damaged": DamagedRecordError,
}


def entry(fields: dict[str, Any]) -> TokenEntry:
    given = {**fields, "rollout_id": fields.get("rid", ROLLOUT), "model_call_id": fields.get("cid", "c0")}
    tokens = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
    return TokenEntry(**{**tokens, **{name: value for name, value in given.items() if name not in ("cid", "rid")}})


def line(fields: dict[str, Any]) -> bytes:
    members = entry(fields).model_dump(mode="json")
    return json.dumps(members, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


class Script:
    """One store and the snapshots that were taken from it."""

    def __init__(self, root: Path) -> None:
        self.root, self.store = root, TokenCaptureStore(root)
        self.snapshots: list[TokenCaptureSnapshot] = []

    def path(self, suffix: str) -> Path:
        return self.root / f"{ROLLOUT}.tokens.{suffix}"

    async def put(self, fields: dict[str, Any]) -> None:
        await self.store.put(entry(fields))

    async def begin(self, call_id: str) -> None:
        await self.store.begin_call(ROLLOUT, call_id)

    async def mark(self, *call_id: str) -> None:
        await self.store.mark_incomplete(ROLLOUT, *call_id)

    async def freeze(self) -> dict[str, Any]:
        snapshot = await self.store.freeze(ROLLOUT)
        self.snapshots.append(snapshot)
        assert sorted(packed.model_call_id for packed in snapshot.packed) == sorted(
            one.model_call_id for one in snapshot.entries
        )
        return {
            "calls": [one.model_call_id for one in snapshot.entries],
            "incomplete": snapshot.incomplete,
            "version": snapshot.version,
            "same_snapshot_id_as_first": snapshot.snapshot_id == self.snapshots[0].snapshot_id,
        }

    async def drop(self, number: int, shift: int = 0) -> bool:
        snapshot = self.snapshots[number]
        return await self.store.drop(ROLLOUT, snapshot_id=snapshot.snapshot_id, version=snapshot.version + shift)

    async def drop_wrong_id(self) -> bool:
        return await self.store.drop(ROLLOUT, snapshot_id="other", version=self.snapshots[0].version)

    async def append_bytes(self, text: str) -> None:
        with self.path("jsonl").open("ab") as file:
            file.write(text.encode())

    async def append_entry_line(self, fields: dict[str, Any], newline: bool) -> None:
        with self.path("jsonl").open("ab") as file:
            file.write(line(fields) + b"\n" * newline)

    async def remove_state(self) -> None:
        self.path("state.json").unlink()

    async def truncate_state(self) -> int:
        os.truncate(self.path("state.json"), 0)
        return 0

    async def state(self) -> dict[str, Any]:
        """The state with the index that it leaves to be built from the records."""
        state = json.loads(self.path("state.json").read_bytes())
        assert state["entry_digests"] == {}
        assert state["indexed_size"] == 0
        records = self.path("jsonl").read_bytes() if self.path("jsonl").exists() else b""
        calls = dict.fromkeys(json.loads(record)["model_call_id"] for record in records.splitlines())
        version = state["version"] + len(calls)
        index = {"entry_digests": sorted(calls), "indexed_size": len(records)}
        return {**state, **index, "snapshot_id": bool(state["snapshot_id"]), "version": version}

    async def files(self) -> list[str]:
        return sorted(os.listdir(self.root))

    async def read(self) -> list[str]:
        return [one.model_call_id for one in self.store.read_entries(ROLLOUT)]

    async def is_incomplete(self) -> bool:
        return self.store.is_incomplete(ROLLOUT)

    async def delete(self) -> None:
        self.store.delete(ROLLOUT)

    async def sweep(self, seconds: float) -> int:
        return self.store.sweep_retired(seconds)


class Model:
    """The same operations on the model of a store."""

    def __init__(self, model: TokenStoreModel) -> None:
        self.model, self.frozen = model, list[tuple[int, int]]()

    def answer(self, operation: str, arguments: list[Any]) -> dict[str, Any]:
        try:
            return {"ok": getattr(self, operation)(*arguments)}
        except ModelRefusal as refusal:
            return {"error": {"kind": refusal.kind}}

    def put(self, fields: dict[str, Any]) -> None:
        self.model.put(fields)

    def begin(self, call_id: str) -> None:
        self.model.begin(call_id)

    def mark(self, *_: str) -> None:
        self.model.mark()

    def freeze(self) -> dict[str, Any]:
        calls, incomplete, version = self.model.freeze()
        self.frozen.append((self.model.snapshots, version))
        is_first = self.model.snapshots == self.frozen[0][0]
        return {"calls": calls, "incomplete": incomplete, "version": version, "same_snapshot_id_as_first": is_first}

    def drop(self, number: int, shift: int = 0) -> bool:
        snapshot, version = self.frozen[number]
        return self.model.drop(is_right_snapshot=snapshot == self.model.snapshots, version=version + shift)

    def drop_wrong_id(self) -> bool:
        return self.model.drop(is_right_snapshot=False, version=self.frozen[0][1])

    def append_bytes(self, text: str) -> None:
        self.model.add_bytes(None, terminated=text.endswith("\n"))

    def append_entry_line(self, fields: dict[str, Any], newline: bool) -> None:
        self.model.add_bytes(fields, terminated=newline)

    def remove_state(self) -> None:
        self.model.lose_state(unreadable=False)

    def truncate_state(self) -> int:
        self.model.lose_state(unreadable=True)
        return 0

    def state(self) -> dict[str, Any]:
        model, calls = self.model, self.model.calls()
        lifecycle = {"frozen": model.frozen, "retired": model.retired, "incomplete": model.incomplete}
        size = sum(len(line(one.record)) + 1 for one in model.lines if one.record is not None)
        index = {"entry_digests": sorted(calls), "indexed_size": size, "version": model.version()}
        return {**lifecycle, **index, "snapshot_id": model.frozen}

    def files(self) -> list[str]:
        return sorted(f"{ROLLOUT}.tokens.{suffix}" for suffix in self.model.files)

    def read(self) -> list[str]:
        return self.model.read()

    def is_incomplete(self) -> bool:
        return self.model.is_incomplete()

    def delete(self) -> None:
        self.model.delete()

    def sweep(self, seconds: float) -> int:
        return self.model.sweep(is_old_enough=seconds < 0)


async def check_step(run: Callable[..., Awaitable[Any]], arguments: list[Any], result: dict[str, Any]) -> None:
    if "ok" in result:
        assert await run(*arguments) == result["ok"]
        return
    with pytest.raises(RAISED[result["error"]["kind"]]):
        await run(*arguments)


def is_same_answer(model: dict[str, Any], peer: dict[str, Any]) -> bool:
    if "ok" in model or "ok" in peer:
        return model == peer
    return bool(model["error"]["kind"] == peer["error"]["kind"])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "section" not in metafunc.fixturenames:
        return
    directory = Path(metafunc.config.getoption("--vectors"))
    document = json.loads((directory / "B_store.json").read_text("utf-8"))
    name = metafunc.function.__name__.removeprefix("test_")
    cases = document[name]
    ids = [case.get("name", str(number)) for number, case in enumerate(cases)]
    metafunc.parametrize("section", cases, ids=ids)


async def test_scripts(section: dict[str, Any], tmp_path: Path, departures: dict[str, Any]) -> None:
    rules = set(departures["what_a_store_takes_better"]["rules"])
    script, model = Script(tmp_path / "tokens"), Model(TokenStoreModel())
    for step in section["steps"]:
        operation, *arguments = step["op"]
        answer = model.answer(operation, arguments)
        if not is_same_answer(answer, step["result"]):
            assert model.model.fired & rules, f"{step}: no rule says {answer}"
        await check_step(getattr(script, operation), arguments, answer)
    await script.store.close()


def test_stored_line(section: dict[str, Any], tmp_path: Path) -> None:
    store = TokenCaptureStore(tmp_path)
    given = section["entry"]
    store.append(TokenEntry(**given))
    stored = (tmp_path / f"{given['rollout_id']}.tokens.jsonl").read_bytes()
    assert stored == section["line"].encode()
    assert hashlib.sha256(stored.rstrip(b"\n")).hexdigest() == section["line_digest"]
    assert store.read_entries(given["rollout_id"]) == [TokenEntry(**given)]
    store.shut_down()


def test_rollout_ids(section: dict[str, Any], tmp_path: Path) -> None:
    store = TokenCaptureStore(tmp_path)
    if "error" in section:
        with pytest.raises(ValueError, match="cannot name token files"):
            store.append(entry({"rid": section["rollout_id"]}))
        assert os.listdir(tmp_path) == []
    else:
        store.append(entry({"rid": section["rollout_id"]}))
        assert [one.rollout_id for one in store.read_entries(section["rollout_id"])] == [section["rollout_id"]]
    store.shut_down()


def test_correlation(section: dict[str, Any], departures: dict[str, Any]) -> None:
    body = section["body"]
    is_refused = isinstance(section.get("ok"), str) and not section["ok"].isprintable()
    if is_refused:
        assert departures["ids_end_where_they_end"]["predicate"] == "the id ends in a line feed"
    if "error" in section or is_refused:
        with pytest.raises(ValueError, match="cannot be a rollout id"):
            derive_rollout_id(body)
    else:
        assert derive_rollout_id(body) == section["ok"]
