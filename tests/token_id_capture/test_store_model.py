"""Random operations, damage included, on the store and on the model of one: both must answer alike."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gym_ray.errors import (
    CaptureError,
    DamagedRecordError,
    RecordConflictError,
    RolloutFrozenError,
    RolloutRetiredError,
)
from gym_ray.storage.calls import FileCalls
from gym_ray.testing.token_store_model import ModelRefusal, TokenStoreModel
from gym_ray.token_id_capture.protocols import TokenCaptureSnapshot
from gym_ray.token_id_capture.records import TokenEntry
from gym_ray.token_id_capture.store import TokenCaptureStore
from gym_ray.token_id_capture.token_files.entry_lines import encode_entry

KINDS: dict[type[CaptureError], str] = {
    RolloutRetiredError: "retired",
    RolloutFrozenError: "frozen",
    RecordConflictError: "call_id_reused",
    DamagedRecordError: "damaged",
}


class Unsynced(FileCalls):
    def sync_data(self, fd: int) -> None:
        pass

    def sync(self, fd: int) -> None:
        pass


def entry(fields: dict[str, Any]) -> TokenEntry:
    tokens = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
    others = {name: value for name, value in fields.items() if name != "cid"}
    return TokenEntry(rollout_id="r0", model_call_id=fields["cid"], **tokens, **others)


class Pair:
    """A store (two of them in turn, as two processes would have) and the model."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stores = [TokenCaptureStore(root, calls=Unsynced()) for _ in range(2)]
        self.model = TokenStoreModel()
        self.turn = 0
        self.snapshots: list[tuple[TokenCaptureSnapshot, int]] = []

    @property
    def store(self) -> TokenCaptureStore:
        self.turn += 1
        return self.stores[self.turn % 2]

    def answers(self, of_store: Any, of_model: Any) -> tuple[Any, Any]:
        try:
            mine = ("ok", asyncio.run(of_store) if asyncio.iscoroutine(of_store) else of_store())
        except CaptureError as error:
            mine = ("error", KINDS[type(error)])
        try:
            expected = ("ok", of_model())
        except ModelRefusal as refusal:
            expected = ("error", refusal.kind)
        return mine, expected

    def put(self, fields: dict[str, Any]) -> tuple[Any, Any]:
        return self.answers(self.store.put(entry(fields)), lambda: self.model.put(fields))

    def begin(self, call_id: str) -> tuple[Any, Any]:
        return self.answers(self.store.begin_call("r0", call_id), lambda: self.model.begin(call_id))

    def withdraw(self, call_id: str) -> tuple[Any, Any]:
        return self.answers(self.store.end_call("r0", call_id, "withdrawn"), lambda: self.model.withdraw(call_id))

    def mark(self, call_id: str) -> tuple[Any, Any]:
        return self.answers(self.store.mark_incomplete("r0", call_id), self.model.mark)

    def freeze(self, _: str) -> tuple[Any, Any]:
        mine, expected = self.answers(self.store.freeze("r0"), self.model.freeze)
        if mine[0] == "ok":
            snapshot = mine[1]
            assert snapshot.incomplete == bool(snapshot.problems)
            self.snapshots.append((snapshot, self.model.snapshots))
            mine = ("ok", ([one.model_call_id for one in snapshot.entries], snapshot.incomplete, snapshot.version))
        return mine, expected

    def drop(self, shift: int) -> tuple[Any, Any]:
        if not self.snapshots:
            return None, None
        snapshot, number = self.snapshots[-1]
        version = snapshot.version + shift
        dropping = self.store.drop("r0", snapshot_id=snapshot.snapshot_id, version=version)
        is_right = number == self.model.snapshots
        return self.answers(dropping, lambda: self.model.drop(is_right_snapshot=is_right, version=version))

    def delete(self, _: str) -> tuple[Any, Any]:
        return self.answers(lambda: self.store.delete("r0"), self.model.delete)

    def damage(self, fields: dict[str, Any] | None) -> tuple[Any, Any]:
        """Add a line past the store; only a writer that finds the file in order does that."""
        lines = self.model.lines
        if self.model.retired or (lines and (lines[-1].record is None or not lines[-1].terminated)):
            return None, None
        terminated = fields is None or fields["cid"] != "c0"
        line = b'{"cut' if fields is None else encode_entry(entry(fields)).rstrip()
        with (self.root / "r0.tokens.jsonl").open("ab") as file:
            file.write(line + b"\n" * terminated)
        self.model.add_bytes(fields, terminated=terminated)
        return None, None

    def junk(self, _: str) -> tuple[Any, Any]:
        return self.damage(None)

    def lose_state(self, unreadable: bool) -> tuple[Any, Any]:
        path = self.root / "r0.tokens.state.json"
        if path.exists() and not self.model.retired:
            path.write_bytes(b"") if unreadable else path.unlink()
            self.model.lose_state(unreadable=unreadable)
        return None, None

    def look(self, _: str) -> tuple[Any, Any]:
        store = self.store
        mine, expected = self.answers(
            lambda: ([one.model_call_id for one in store.read_entries("r0")], store.is_incomplete("r0")),
            lambda: (self.model.read(), self.model.is_incomplete()),
        )
        return mine, expected

    def files(self, _: str) -> tuple[Any, Any]:
        return set(os.listdir(self.root)), {f"r0.tokens.{suffix}" for suffix in self.model.files}

    def close(self) -> None:
        for store in self.stores:
            store.shut_down()


CALL_IDS = st.sampled_from(["c0", "c1", "c2"])
RECORDS = st.fixed_dictionaries(
    {"cid": CALL_IDS}, optional={"created_at": st.sampled_from([1.0, 2.0]), "model": st.just("other")}
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), RECORDS),
        st.tuples(st.just("put"), RECORDS),
        st.tuples(st.just("damage"), RECORDS),
        st.tuples(st.sampled_from(["begin", "withdraw", "mark", "look", "look", "junk", "files"]), CALL_IDS),
        st.tuples(st.sampled_from(["freeze", "delete"]), st.just("")),
        st.tuples(st.just("drop"), st.sampled_from([0, 0, 1])),
        st.tuples(st.just("lose_state"), st.booleans()),
    ),
    max_size=25,
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
@given(STEPS)
def test_any_operations_give_what_the_rules_say(steps: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        pair = Pair(Path(root))
        try:
            for name, argument in [*steps, ("look", ""), ("files", ""), ("freeze", "")]:
                mine, expected = getattr(pair, name)(argument)
                assert mine == expected, name
        finally:
            pair.close()
