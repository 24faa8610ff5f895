"""Suites that hold a staging sink and a staging source against what their protocols promise (C120-C127, C332).

For authors of backends: subclass both with pytest, and say in ``make`` how a sink and a source over one empty store are
made::

    class TestMySink(StagingSinkSuite):
        def make(self):
            return MySink(...), MySource(...)

Each test works on a store of its own, which is closed behind it. Nothing here imports pytest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np

from gym_ray.testing.staged_chains import staged_call, staged_chain
from gym_ray.token_id_capture.staging import (
    StagedCallBaseSnapshot,
    StagedCallRecord,
    StageResult,
    StagingSink,
    StagingSource,
)
from gym_ray.token_id_capture.token_arrays import join_tokens

__all__ = ["StagingSinkSuite", "StagingSourceSuite"]

_WRITERS: Final = 32
_CALLS_EACH: Final = 4
_WAIT_S: Final = 30.0
_ODD_IDS: Final = ("r/0", "run 1:é", "日本", "a" * 200, "..", "r0#%?*")
_WIDE_IDS: Final = [0, 2**31, 2**32, 2**63, 2**64 - 1]


class _StagingSuite:
    """What both suites share: one sink and one source over a store, made when a test first asks for them."""

    missing_keys: ClassVar[Sequence[str]] = ("no-such-rollout/no-such-call",)
    """Keys of the backend's own kind that lead to nothing."""

    _parts: tuple[Any, Any] | None = None

    def make(self) -> tuple[StagingSink, StagingSource]:
        """Return a sink and a source over one new, empty store."""
        raise NotImplementedError

    @property
    def sink(self) -> StagingSink:
        """The sink under test."""
        sink: StagingSink = self._made()[0]
        return sink

    @property
    def source(self) -> Any:
        """The source under test, with whatever optional methods it has."""
        return self._made()[1]

    def teardown_method(self) -> None:
        """Close what was made and can be closed."""
        parts, self._parts = self._parts or (), None
        for part in dict.fromkeys(parts):
            close = getattr(part, "close", None)
            if callable(close):
                close()

    def stage(self, record: StagedCallRecord, attachments: Mapping[str, Any] | None = None) -> str:
        """Stage a record and return its key, which must be granted."""
        kwargs = {} if attachments is None else {"attachments": attachments}
        result = self.sink.stage(record, **kwargs)
        assert isinstance(result, StageResult), f"stage answered {type(result).__name__}, not a StageResult"
        assert result.ok, f"{record.staging_key} was refused: {result.error}"
        assert result.staging_key, f"{record.staging_key} was staged without a key"
        return result.staging_key

    def refusal(self, record: StagedCallRecord, attachments: Mapping[str, Any] | None = None) -> str:
        """Stage a record that must be refused, and return why it was; raising is a refusal as well."""
        try:
            result = self.sink.stage(record, attachments=attachments)
        except Exception as error:  # noqa: BLE001 - a sink may refuse with any error
            return str(error)
        assert not result.ok, f"{record.staging_key} was staged, and had to be refused"
        assert result.error, "a refusal needs its reason"
        return result.error

    def _made(self) -> tuple[Any, Any]:
        if self._parts is None:
            self._parts = self.make()
        return self._parts


class StagingSinkSuite(_StagingSuite):
    """What a sink promises."""

    takes_attachments: ClassVar[bool] = True
    """Whether the sink keeps media; one for text alone does not."""
    unstorable: ClassVar[Mapping[str, Any] | None] = None
    """Attachments that the sink must refuse; None for a sink that keeps everything."""

    def attachment_bytes(self, staging_key: str, name: str) -> bytes:
        """Return the bytes of one attachment as the source reads it back: an array, or something with ``chunks()``."""
        found = self.source.fetch_attachments(staging_key)[name]
        return b"".join(found.chunks()) if hasattr(found, "chunks") else np.asarray(found).tobytes()

    def test_a_staged_call_can_be_read_at_once(self) -> None:
        """A success means that the call can be fetched under the key, as it was (C122)."""
        for record in (*staged_chain("r0", 3), staged_call("r1", generated=(), log_probs=[])):
            key = self.stage(record)
            (snapshot,) = self.source.fetch([key])
            assert_same(snapshot, record)

    def test_a_key_leads_to_its_own_call(self) -> None:
        """No two calls share a key, whatever their ids look like (C115)."""
        records = [staged_call(rollout, call) for rollout in _ODD_IDS for call in ("c0", "c/1")]
        keys = [self.stage(record) for record in records]
        assert len(set(keys)) == len(keys)
        for key, record in zip(keys, records, strict=True):
            assert_same(self.source.fetch([key])[0], record)

    def test_values_at_the_edge_of_their_types_come_back(self) -> None:
        """Ids of 64 bits, the largest and smallest log probs and long calls come back (C44)."""
        tiny = float(np.float32(1e-45))
        for record in (
            staged_call(carried=_WIDE_IDS, generated=_WIDE_IDS[:2], log_probs=[-3.4028234663852886e38, tiny]),
            staged_call(model_call_id="c1", log_probs=[-0.1, 0.1]),
            staged_call(model_call_id="c2", weight_version=2**62),
            staged_call(model_call_id="c3", carried=np.arange(50_000), generated=np.arange(20_000)),
        ):
            assert_same(self.source.fetch([self.stage(record)])[0], record)

    def test_the_same_call_again_changes_nothing(self) -> None:
        """An identical record is a success under the same key (C123)."""
        record = staged_call(extras={"a": [1, None, "é"]})
        key = self.stage(record)
        assert self.stage(staged_call(extras={"a": [1, None, "é"]})) == key
        assert_same(self.source.fetch([key])[0], record)

    def test_another_call_under_the_same_ids_is_refused_and_not_written(self) -> None:
        """Other content never replaces a staged call (C123)."""
        record = staged_call()
        key = self.stage(record)
        for other in (staged_call(weight_version=2), staged_call(generated=(4, 6)), staged_call(extras={})):
            self.refusal(other)
        assert_same(self.source.fetch([key])[0], record)
        assert self.stage(record) == key

    def test_threads_that_stage_one_call_get_one_key(self) -> None:
        """The same call from many threads is staged once (C121, C123)."""
        record = staged_call()
        assert len(set(self._at_once(lambda _: self.stage(record)))) == 1

    def test_threads_stage_different_calls_at_once(self) -> None:
        """Calls of many threads do not mix (C121)."""

        def stage_some(writer: int) -> list[tuple[str, StagedCallRecord]]:
            calls = [staged_call(f"r{writer}", f"c{number}", generated=(writer,)) for number in range(_CALLS_EACH)]
            return [(self.stage(record), record) for record in calls]

        staged = [pair for pairs in self._at_once(stage_some) for pair in pairs]
        assert len({key for key, _ in staged}) == _WRITERS * _CALLS_EACH
        for (_, record), snapshot in zip(staged, self.source.fetch([key for key, _ in staged]), strict=True):
            assert_same(snapshot, record)

    def test_attachments_are_kept_with_their_call_or_refused(self) -> None:
        """A sink keeps every attachment as it was when it was staged, or takes none (C99, C100)."""
        pixels = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        if not self.takes_attachments:
            self.refusal(staged_call(), {"pixels": pixels})
            return
        key = self.stage(staged_call(), {"pixels": pixels, "more": np.array([7], np.uint8)})
        kept = pixels.tobytes()
        pixels[:] = 0  # what was staged is not what its owner does later
        assert self.attachment_bytes(key, "pixels") == kept
        assert self.attachment_bytes(key, "more") == b"\x07"
        assert_same(self.source.fetch([key])[0], staged_call())

    def test_attachments_count_for_what_is_the_same_call(self) -> None:
        """The same record with other attachments is another call (C123)."""
        if not self.takes_attachments:
            self.refusal(staged_call(), {})
            return
        key = self.stage(staged_call(), {"pixels": np.arange(4)})
        assert self.stage(staged_call(), {"pixels": np.arange(4)}) == key
        self.refusal(staged_call(), {"pixels": np.arange(1, 5)})
        self.refusal(staged_call(), {"pixels": np.arange(4), "more": np.arange(1)})
        assert self.attachment_bytes(key, "pixels") == np.arange(4).tobytes()

    def test_no_attachments_at_all_are_staged_as_well(self) -> None:
        """An empty mapping is a mapping (C98)."""
        if self.takes_attachments:
            assert_same(self.source.fetch([self.stage(staged_call(), {})])[0], staged_call())

    def test_what_cannot_be_kept_leaves_nothing_behind(self) -> None:
        """A refused call leaves nothing, so that its ids can be staged anew (C100, C124)."""
        if self.unstorable is None:
            return
        self.refusal(staged_call(), {"kept": np.arange(3), **self.unstorable})
        assert_same(self.source.fetch([self.stage(staged_call(weight_version=2))])[0], staged_call(weight_version=2))

    def _at_once(self, work: Callable[[int], Any]) -> list[Any]:
        _ = self.sink, self.source
        line = threading.Barrier(_WRITERS)

        def run(writer: int) -> Any:
            line.wait(_WAIT_S)
            return work(writer)

        with ThreadPoolExecutor(_WRITERS) as threads:
            return list(threads.map(run, range(_WRITERS)))


class StagingSourceSuite(_StagingSuite):
    """What a source promises; its optional methods are held to theirs where it has them."""

    def test_calls_come_in_the_order_asked(self) -> None:
        """One snapshot a key, in the order of the request (C125)."""
        records = [record for rollout in range(8) for record in staged_chain(f"r{rollout}", 5)]
        keys = [self.stage(record) for record in records]
        for order in (range(40), range(39, -1, -1), [17], [3, 39, 0, 20]):
            snapshots = self.source.fetch([keys[at] for at in order])
            assert isinstance(snapshots, list)
            for at, snapshot in zip(order, snapshots, strict=True):
                assert_same(snapshot, records[at])

    def test_nothing_asked_is_nothing_found(self) -> None:
        """An empty request has an empty answer."""
        assert self.source.fetch([]) == []

    def test_a_missing_key_raises_and_is_never_skipped(self) -> None:
        """A key that leads to nothing is a KeyError, never a shorter answer (C126)."""
        key = self.stage(staged_call())
        for missing in (*self.missing_keys, "no key at all", ""):
            for keys in ([missing], [key, missing], [missing, key]):
                assert_raises(KeyError, partial(self.source.fetch, keys))
        assert_same(self.source.fetch([key])[0], staged_call())

    def test_a_key_that_is_asked_for_twice_raises(self) -> None:
        """A request with one key twice is a KeyError (C126)."""
        keys = [self.stage(record) for record in staged_chain()]
        assert_raises(KeyError, lambda: self.source.fetch([keys[0], keys[1], keys[0]]))

    def test_snapshots_hold_columns_and_no_extras(self) -> None:
        """A snapshot is a base snapshot of read-only columns whose digest is right (C125)."""
        record = staged_call(extras={"media_spans": [{"offset": 1, "length": 2}]})
        (snapshot,) = self.source.fetch([self.stage(record)])
        assert type(snapshot) is StagedCallBaseSnapshot
        assert snapshot.extras_digest == record.extras_digest
        assert snapshot.compute_digest() == record.digest
        assert snapshot.token_ids_delta.array.dtype.kind == "u"
        assert not snapshot.token_ids_delta.array.flags.writeable

    def test_a_prefix_is_the_deltas_of_its_chain(self) -> None:
        """Token ids alone come joined in order, and fail like whole snapshots (C127)."""
        if not hasattr(self.source, "fetch_prefix_token_ids"):
            return
        chain = staged_chain("r0", 5)
        keys = [self.stage(record) for record in chain]
        for length in range(1, 6):
            prefix = self.source.fetch_prefix_token_ids(keys[:length])
            assert np.array_equal(prefix, join_tokens([record.token_ids_delta.array for record in chain[:length]]))
            assert not prefix.flags.writeable
        for wrong in ([*keys, self.missing_keys[0]], [keys[0], keys[0]]):
            assert_raises(KeyError, partial(self.source.fetch_prefix_token_ids, wrong))

    def test_extras_stand_behind_the_same_key(self) -> None:
        """Extras come back as they were hashed, None and an empty mapping apart (C92)."""
        if not hasattr(self.source, "fetch_extras"):
            return
        wanted: list[Any] = [None, {}, {"a": None}, {"routed_experts": [[[1, -1]]], "é": {"deep": [1.5, True, "x"]}}]
        calls = [staged_call(model_call_id=f"c{at}", extras=extras) for at, extras in enumerate(wanted)]
        keys = [self.stage(record) for record in calls]
        assert self.source.fetch_extras(keys[::-1]) == wanted[::-1]
        assert_raises(KeyError, lambda: self.source.fetch_extras([*keys, self.missing_keys[0]]))

    def test_threads_read_at_once(self) -> None:
        """Readers on many threads get their own calls."""
        records = [staged_call(f"r{number}", generated=(number,)) for number in range(_WRITERS)]
        keys = [self.stage(record) for record in records]
        with ThreadPoolExecutor(_WRITERS) as threads:
            found = list(threads.map(lambda at: self.source.fetch([keys[at], keys[at - 1]]), range(_WRITERS)))
        for at, (own, before) in enumerate(found):
            assert_same(own, records[at])
            assert_same(before, records[at - 1])


def assert_same(snapshot: StagedCallBaseSnapshot, record: StagedCallRecord) -> None:
    """Fail unless a snapshot is the base of a record; log probabilities may have become float32 (C44)."""
    for name in StagedCallBaseSnapshot.model_fields:
        found, wanted = getattr(snapshot, name), getattr(record, name)
        if name == "generation_log_probs_delta":
            wanted, found = wanted.array.astype(np.float32), found.array.astype(np.float32)
            assert np.array_equal(found, wanted), f"{record.staging_key}: {name} came back changed"
        else:
            assert found == wanted, f"{record.staging_key}: {name} came back as {found!r:.200}, not {wanted!r:.200}"


def assert_raises(kind: type[Exception], call: Callable[[], Any]) -> None:
    """Fail unless a call raises this kind of error."""
    try:
        answer = call()
    except kind:
        return
    raise AssertionError(f"a {kind.__name__} was promised, and there came {answer!r:.200}")
