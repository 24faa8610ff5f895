"""Staged calls come back as they were, with few requests, or not at all and with a reason."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gym_ray.errors import ForeignKeyError, StagedCallMissingError, StagedPrefixError
from gym_ray.storage.posix import PosixStore
from gym_ray.testing.staged_rollout import StagedRollout
from gym_ray.token_id_capture.staging import StagedCallBaseSnapshot, StagedCallRecord
from gym_ray.token_id_capture.staging.parquet.attachments.attachment_kinds import NUMPY_DTYPES, RAW_BITS
from gym_ray.token_id_capture.staging.parquet.attachments.preparing import prepare_attachments
from gym_ray.token_id_capture.staging.parquet.calls.attachment_reading import AttachmentView
from gym_ray.token_id_capture.staging.parquet.calls.call_reading import StoredAttachment
from gym_ray.token_id_capture.staging.parquet.calls.call_rows import CallItem
from gym_ray.token_id_capture.staging.parquet.calls.call_segments import write_calls_segment
from gym_ray.token_id_capture.staging.parquet.calls.media_reading import media_parts
from gym_ray.token_id_capture.staging.parquet.calls.staging_sink import ParquetStagingSink
from gym_ray.token_id_capture.staging.parquet.calls.staging_source import ParquetStagingSource
from gym_ray.token_id_capture.staging.parquet.segments.committer import SegmentStream
from gym_ray.token_id_capture.staging.parquet.segments.identity import open_identity
from gym_ray.token_id_capture.staging.parquet.segments.keys import SegmentKey
from gym_ray.token_id_capture.staging.parquet.segments.layout import SegmentName, new_writer
from gym_ray.token_id_capture.staging.parquet.segments.segment_footer import FooterHolder
from gym_ray.token_id_capture.staging.parquet.segments.segment_reader import SegmentReader


class CountingStore(PosixStore):
    """A directory that knows what was asked of it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.requests: list[tuple[str, str, int]] = []

    def read(self, name: str) -> bytes:
        return self._counted("read", name, super().read(name))

    def read_range(self, name: str, start: int, length: int) -> bytes:
        return self._counted("range", name, super().read_range(name, start, length))

    def read_tail(self, name: str, length: int) -> tuple[bytes, int]:
        tail, size = super().read_tail(name, length)
        return self._counted("tail", name, tail), size

    def list(self, prefix: str = "") -> list[str]:
        self.requests.append(("list", prefix, 0))
        return super().list(prefix)

    def size(self, name: str) -> int:
        self.requests.append(("size", name, 0))
        return super().size(name)

    def exists(self, name: str) -> bool:
        self.requests.append(("exists", name, 0))
        return super().exists(name)

    def bytes_read(self) -> int:
        return sum(count for _, _, count in self.requests)

    def _counted(self, what: str, name: str, data: bytes) -> bytes:
        self.requests.append((what, name, len(data)))
        return data


def chain(rollout_id: str = "r1", calls: int = 3) -> list[StagedCallRecord]:
    """A root and its descendants, one after the other; every second one has extras."""
    rollout = StagedRollout(rollout_id)
    parent = None
    for at in range(calls):
        extras = {"at": at, "text": "☃", "big": 2**60, "x": [1.5, None]} if at % 2 else None
        parent = rollout.add(f"c{at}", [at + 1, 7], [9, at + 100, 2**31 - 1], parent=parent, extras=extras)
        parent = parent.model_call_id
    return list(rollout.records.values())


def write_segment(
    store: PosixStore, records: list[StagedCallRecord], attachments: list[dict[str, Any] | None] | None = None
) -> list[str]:
    """Write records as one segment, and return their keys."""
    store_id = open_identity(store)
    name = SegmentName("default", new_writer(), 0, "calls")
    media = attachments or [None] * len(records)
    items = [
        CallItem(record, None if given is None else prepare_attachments(given))
        for record, given in zip(records, media, strict=True)
    ]
    with store.stream(str(name)) as value:
        places = write_calls_segment(SegmentStream(name, value, lambda: None), items, store_id)
        value.publish()
    return [
        str(SegmentKey(store_id, "default", name.writer, 0, place.row_group, place.row, record.digest[:8]))
        for place, record in zip(places, records, strict=True)
    ]


def segment_path(root: Path) -> Path:
    (path,) = root.glob("default/*/*.parquet")
    return path


def same(snapshot: StagedCallBaseSnapshot, record: StagedCallRecord) -> bool:
    return snapshot.model_dump() == record.model_dump(exclude={"extras"})


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    return CountingStore(tmp_path / "staging")


@pytest.fixture
def source(store: CountingStore) -> Iterator[ParquetStagingSource]:
    with ParquetStagingSource("", store=store) as source:
        yield source


def test_calls_come_back_in_the_order_asked(tmp_path: Path) -> None:
    records = chain(calls=5)
    with ParquetStagingSink(tmp_path) as sink:
        keys = [sink.stage(record).staging_key for record in records]
    with ParquetStagingSource(tmp_path) as source:
        order = [3, 0, 4, 1, 2]
        snapshots = source.fetch([keys[at] for at in order])
        assert all(same(snapshot, records[at]) for snapshot, at in zip(snapshots, order, strict=True))
        assert [type(snapshot) for snapshot in snapshots] == [StagedCallBaseSnapshot] * 5
        assert source.fetch_extras(keys) == [record.extras for record in records]
        assert source.fetch_prefix_token_ids(keys[:3]).tolist() == [
            token for record in records[:3] for token in record.token_ids_delta
        ]
        assert source.fetch([]) == []
        assert source.fetch_prefix_token_ids([]).size == 0


def test_ids_of_64_bits_come_back(store: CountingStore, source: ParquetStagingSource) -> None:
    record = StagedRollout("wide").add("c", [2**64 - 1, 0], [2**31])
    (key,) = write_segment(store, [record, *chain()])[:1]
    (snapshot,) = source.fetch([key])
    assert same(snapshot, record)
    assert source.fetch_prefix_token_ids([key]).tolist() == [2**64 - 1, 0, 2**31]


def test_snapshots_keep_no_row_group_alive(store: CountingStore, source: ParquetStagingSource) -> None:
    (key, *_) = write_segment(store, chain())
    (snapshot,) = source.fetch([key])
    for column in (snapshot.token_ids_delta, snapshot.token_mask_delta, snapshot.generation_log_probs_delta):
        owner = column.array if column.array.base is None else column.array.base
        assert isinstance(owner, np.ndarray)
        assert owner.nbytes == column.nbytes


REALISTIC_CALLS = 1024


def realistic(segment: int, calls: int = REALISTIC_CALLS) -> list[StagedCallRecord]:
    """Roots of 600 tokens, half of them sampled, ids spread as those of text are."""
    random = np.random.default_rng(segment)
    records = []
    for at in range(calls):
        ids = np.minimum(random.zipf(1.3, 600), 150_000).tolist()
        records.append(
            StagedRollout(f"step-{segment}-prompt-{at // 8}-{at % 8}").add(f"{at:032x}", ids[:300], ids[300:])
        )
    return records


@pytest.mark.parametrize("segments", [1, 4])
def test_one_call_of_many_takes_three_requests(store: CountingStore, segments: int) -> None:
    keys = [key for segment in range(segments) for key in write_segment(store, realistic(segment))]
    for key in (keys[0], keys[len(keys) // 2], keys[-1]):
        store.requests.clear()
        with ParquetStagingSource("", store=store) as fresh:
            (snapshot,) = fresh.fetch([key])
        assert snapshot.cum_len == 600
        assert len(store.requests) <= 3
        assert store.bytes_read() <= 512 * 1024
        assert {name for _, name, _ in store.requests if name.endswith(".parquet")} == {name_of(key)}


def name_of(key: str) -> str:
    _, _, partition, where, _, _ = key.split(":")
    writer, seq = where.split("-")
    return f"{partition}/{writer}/{int(seq):08}.calls.parquet"


def test_one_call_of_sixteen_takes_no_more_requests(store: CountingStore) -> None:
    keys = write_segment(store, realistic(0, 16))
    store.requests.clear()
    with ParquetStagingSource("", store=store) as fresh:
        fresh.fetch([keys[5]])
    assert len(store.requests) <= 3
    assert store.bytes_read() <= 512 * 1024


def test_a_footer_is_read_once(store: CountingStore, source: ParquetStagingSource) -> None:
    keys = write_segment(store, realistic(0, 64))
    source.fetch(keys[::-1])
    source.fetch(keys[:1])
    assert [what for what, _, _ in store.requests].count("tail") == 1


def test_neither_extras_nor_media_move_when_tokens_are_fetched(store: CountingStore) -> None:
    records = [
        StagedRollout("r").add(f"c{at}", [1], [2], extras={"text": np.random.default_rng(at).bytes(40_000).hex()})
        for at in range(16)
    ]
    media = [{"pixels": np.random.default_rng(at).bytes(100_000)} for at in range(16)]
    keys = write_segment(store, records, media)
    size = store.size(name_of(keys[0]))
    store.requests.clear()
    with ParquetStagingSource("", store=store) as fresh:
        fresh.fetch(keys)
        fresh.fetch_prefix_token_ids(keys[:1])
    tail = next(count for what, _, count in store.requests if what == "tail")
    assert size > 2_000_000
    assert store.bytes_read() - tail < 20_000


def test_a_cold_chain_is_read_in_parallel_within_the_bound(tmp_path: Path) -> None:
    class Meeting(CountingStore):
        """Lets no footer go before three readers asked for one."""

        def __init__(self, root: Path) -> None:
            super().__init__(root)
            self.together = threading.Barrier(3, timeout=20)
            self.inside = self.most = 0
            self.lock = threading.Lock()

        def read_tail(self, name: str, length: int) -> tuple[bytes, int]:
            with self.lock:
                self.inside += 1
                self.most = max(self.most, self.inside)
            self.together.wait()
            try:
                return super().read_tail(name, length)
            finally:
                with self.lock:
                    self.inside -= 1

    store = Meeting(tmp_path)
    records = chain(calls=6)
    keys = [key for record in records for key in write_segment(store, [record])]
    with ParquetStagingSource("", store=store, max_parallel=3) as source:
        tokens = source.fetch_prefix_token_ids(keys)
    assert tokens.tolist() == [token for record in records for token in record.token_ids_delta]
    assert store.most == 3


def test_many_threads_read_one_footer_once(store: CountingStore, source: ParquetStagingSource) -> None:
    records = chain(calls=16)
    keys = write_segment(store, records)
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda at: source.fetch([keys[at]])[0], range(16)))
    assert all(same(snapshot, record) for snapshot, record in zip(found, records, strict=True))
    assert [what for what, _, _ in store.requests].count("tail") == 1


def test_keys_that_lead_nowhere(store: CountingStore, source: ParquetStagingSource) -> None:
    records = chain()
    keys = write_segment(store, records, [{"pixels": b"x"}, None, None])
    head, _, _ = keys[0].rpartition(":")
    gone = keys[0].replace("-0:", "-1:")
    for bad, message in [
        ([keys[0], keys[1], keys[0]], "asked for twice"),
        ([gone], "has no segment default/.*/00000001.calls.parquet"),
        ([f"{head}:00000000"], "is call c0 with the digest"),
        ([keys[0].replace(":0.0:", ":0.1:")], "is call c1 with the digest"),
        ([keys[0].replace(":0.0:", ":0.3:")], "has no row 3"),
        ([keys[0].replace(":0.0:", ":1.0:")], "is no staged call"),
        ([keys[0].replace(":0.0:", ":7.0:")], "has no row group 7"),
        (["r1/c0"], "is no staging key"),
        ([""], "is no staging key"),
    ]:
        with pytest.raises(KeyError, match=message) as caught:
            source.fetch(bad)
        assert isinstance(caught.value, StagedCallMissingError)
        with pytest.raises(KeyError, match=message):
            source.fetch_prefix_token_ids(bad)


def test_a_key_of_another_store_is_refused_by_both_names(tmp_path: Path) -> None:
    here, there = CountingStore(tmp_path / "here"), CountingStore(tmp_path / "there")
    (foreign, *_) = write_segment(there, chain())
    (own, *_) = write_segment(here, chain())
    with ParquetStagingSource("", store=here) as source:
        for key in (foreign, own.replace(own.split(":")[1], "0" * 16)):
            with pytest.raises(ForeignKeyError) as caught:
                source.fetch([own, key])
            assert key.split(":")[1] in str(caught.value)
            assert own.split(":")[1] in str(caught.value)


def test_a_partition_reads_its_own_keys(store: CountingStore) -> None:
    (key, *_) = write_segment(store, chain())
    with ParquetStagingSource("", store=store, partition="other") as source, pytest.raises(KeyError, match="'default'"):
        source.fetch([key])
    with ParquetStagingSource("", store=store, partition="default") as source:
        assert len(source.fetch([key])) == 1
    with pytest.raises(ValueError, match="partition"):
        ParquetStagingSource("", store=store, partition="a/b")
    with pytest.raises(ValueError, match="max_parallel"):
        ParquetStagingSource("", store=store, max_parallel=0)


def test_a_place_where_nothing_was_staged(store: CountingStore, source: ParquetStagingSource, tmp_path: Path) -> None:
    (key, *_) = write_segment(CountingStore(tmp_path / "elsewhere"), chain())
    with pytest.raises(KeyError, match="has no segment"):
        source.fetch([key])


def test_a_prefix_must_be_a_chain_from_its_root_on(store: CountingStore, source: ParquetStagingSource) -> None:
    keys = write_segment(store, [*chain(), *chain("r2")])
    for broken, message in [
        (keys[1:3], "call c1 of rollout r1 continues c0 after 5 tokens.* continue nothing after 0"),
        ([keys[0], keys[2]], "call c2 of rollout r1 continues c1 after 10"),
        ([keys[1], keys[0]], "c1"),
        ([keys[0], keys[4]], "continues a call of rollout r1"),
    ]:
        with pytest.raises(StagedPrefixError, match=message):
            source.fetch_prefix_token_ids(broken)


def test_ids_that_do_not_give_their_chain_hash_are_no_prefix(
    store: CountingStore, source: ParquetStagingSource
) -> None:
    rollout = StagedRollout()
    rollout.add("root", [1], [2])
    rollout.add("other", [1], [3])
    rollout.add("child", [5], [6], parent="root", chain_hash_of="other")
    keys = write_segment(store, list(rollout.records.values()))
    with pytest.raises(StagedPrefixError, match="child of rollout r1 do not give its chain hash"):
        source.fetch_prefix_token_ids([keys[0], keys[2]])


FLIPPED_EVERY = 41
"""A number without common factors with those of the format; with 1 the test takes a minute, and passes."""


def damaged_outcome(root: Path, keys: list[str], records: list[StagedCallRecord], media: bytes) -> str:
    """Read everything of a file that may be damaged: the right answers, or a clear error."""
    with ParquetStagingSource(root) as source:
        try:
            snapshots = source.fetch(keys)
            extras = source.fetch_extras(keys)
            tokens = source.fetch_prefix_token_ids(keys)
            found = source.open_attachment(keys[0], "pixels").read()
        except (ValueError, KeyError) as error:
            return "error" if str(root) in str(error) else f"unclear: {error}"
    assert all(same(snapshot, record) for snapshot, record in zip(snapshots, records, strict=True))
    assert extras == [record.extras for record in records]
    assert tokens.tolist() == [token for record in records for token in record.token_ids_delta]
    assert found == media
    return "right"


def test_a_flipped_byte_anywhere_never_gives_wrong_tokens(tmp_path: Path) -> None:
    records = chain()
    media = bytes(range(200))
    keys = write_segment(CountingStore(tmp_path), records, [{"pixels": media}, None, {}])
    path = segment_path(tmp_path)
    data = bytearray(path.read_bytes())
    outcomes = []
    for at in range(0, len(data), FLIPPED_EVERY):
        flip = 1 << at % 8
        data[at] ^= flip
        path.write_bytes(data)
        outcomes.append(damaged_outcome(tmp_path, keys, records, media))
        data[at] ^= flip
    path.write_bytes(data)
    assert damaged_outcome(tmp_path, keys, records, media) == "right"
    assert set(outcomes) <= {"right", "error"}
    assert outcomes.count("error") > len(outcomes) // 4


def test_a_truncated_segment_is_an_error_at_every_length(tmp_path: Path) -> None:
    records = chain()
    keys = write_segment(CountingStore(tmp_path), records, [{"pixels": b"x"}, None, None])
    path = segment_path(tmp_path)
    data = path.read_bytes()
    for length in (*range(0, len(data), 13), len(data) - 1):
        path.write_bytes(data[:length])
        with ParquetStagingSource(tmp_path) as source, pytest.raises(ValueError, match="truncated"):
            source.fetch(keys)


def test_a_segment_longer_than_a_tail_that_lost_its_middle(tmp_path: Path) -> None:
    keys = write_segment(CountingStore(tmp_path), realistic(0, 256))
    path = segment_path(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:1000] + data[50_000:])
    with ParquetStagingSource(tmp_path) as source, pytest.raises((ValueError, KeyError), match="default/"):
        source.fetch(keys)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated, or no Parquet file"),
        (b"not parquet at all, but long enough to be looked at", "truncated, or no Parquet file"),
        (b"PAR1" + b"\0" * 20 + (10**6).to_bytes(4, "little") + b"PAR1", "more than the file"),
        (b"PAR1" + b"\0" * 20 + (12).to_bytes(4, "little") + b"PAR1", "no segment .* or its footer is"),
        ("unsealed", "no segment of a staging store, or its footer is damaged"),
        ("foreign", "is a Parquet file, but no segment of a staging store$"),
        ("kind", "holds rows of kind tokens, not calls"),
        ("version", "version 9"),
        ("columns", "no column|cannot be read"),
    ],
)
def test_a_file_that_is_no_segment_of_calls(tmp_path: Path, content: bytes | str, message: str) -> None:
    (key, *_) = write_segment(CountingStore(tmp_path), chain())
    path = segment_path(tmp_path)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        said = {
            "unsealed": {},
            "foreign": {},
            "kind": {"gym_ray.format": "gym-ray-staging", "gym_ray.version": "1", "gym_ray.kind": "tokens"},
            "version": {"gym_ray.format": "gym-ray-staging", "gym_ray.version": "9", "gym_ray.kind": "calls"},
            "columns": {
                "gym_ray.format": "gym-ray-staging",
                "gym_ray.version": "1",
                "gym_ray.kind": "calls",
                "gym_ray.store_id": key.split(":")[1],
            },
        }[content]
        table = pa.table({"row_kind": ["call"], "rollout_id": [1]}).replace_schema_metadata(said)
        pq.write_table(table, path) if content == "unsealed" else write_sealed(table, path)
    with ParquetStagingSource(tmp_path) as source, pytest.raises(ValueError, match=message) as caught:
        source.fetch([key])
    assert str(path.relative_to(tmp_path)) in str(caught.value)


def write_sealed(table: pa.Table, path: Path) -> None:
    """Put a file where a segment is, whole and with a right checksum."""
    path.unlink()
    with PosixStore(path.parent).stream(path.name) as value:
        holder = FooterHolder(value)
        holder.hold()
        pq.write_table(table, pa.PythonFile(holder, mode="w"))
        holder.release()
        value.publish()


def give_back(value: Any) -> Any:
    return [view.read() for view in value] if isinstance(value, list) else value.read()


def stage(root: Path, attachments: dict[str, Any] | None) -> str:
    with ParquetStagingSink(root) as sink:
        result = sink.stage(chain()[0], attachments=attachments)
    assert result.ok, result.error
    assert result.staging_key is not None
    return result.staging_key


@pytest.mark.parametrize("shape", [(3, 4), (), (0, 5)])
@pytest.mark.parametrize("name", sorted(NUMPY_DTYPES | set(RAW_BITS)))
def test_tensors_come_back_bit_for_bit(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    kind = np.dtype(getattr(ml_dtypes, name, name))
    raw = np.arange(int(np.prod(shape)) * kind.itemsize, dtype=np.uint8) * 37
    tensor = (raw % 2 if name == "bool" else raw).view(kind).reshape(shape)
    key = stage(tmp_path, {"t": tensor.copy(order="F")})
    with ParquetStagingSource(tmp_path) as source:
        found = source.open_attachment(key, "t").read()
    assert (found.dtype, found.shape, found.tobytes()) == (tensor.dtype, tensor.shape, tensor.tobytes())
    assert found.flags.writeable


def test_without_ml_dtypes_the_bits_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = np.array([1.5, -2.0, 3.25], ml_dtypes.bfloat16)
    key = stage(tmp_path, {"t": tensor})
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    with ParquetStagingSource(tmp_path) as source:
        view = source.open_attachment(key, "t")
        found = view.read()
    assert view.dtype == "bfloat16"
    assert found.dtype == np.uint16
    assert found.tolist() == tensor.view(np.uint16).tolist()


def test_bytes_text_lists_and_arrow_come_back_as_they_were(tmp_path: Path) -> None:
    table = pa.table({"a": [1, None], "b": pa.array(["x", "y"]).dictionary_encode()})
    given = {
        "image": b"\x89PNG",
        "nothing": b"",
        "text": "☃",
        "ragged": [np.arange(3, dtype=np.int16), np.zeros((2, 0)), b"raw", "text"],
        "empty": [],
        "single": (np.float32(2.5),),
        "table": table,
        "batch": table.select(["a"]).to_batches()[0],
        "no rows": pa.record_batch({"a": pa.array([], pa.int8())}),
        "array": pa.array([[1], None, [2, 3]]),
        "chunks": pa.chunked_array([["a"], ["b", None]]),
    }
    key = stage(tmp_path, given)
    with ParquetStagingSource(tmp_path) as source:
        views = source.fetch_attachments(key)
        found = {name: give_back(view) for name, view in views.items()}
    assert list(found) == list(given)
    for name in ("image", "nothing", "text", "empty"):
        assert found[name] == given[name]
        assert type(found[name]) is type(given[name])
    assert [np.asarray(item).tolist() for item in found["ragged"][:2]] == [[0, 1, 2], [[], []]]
    assert found["ragged"][2:] == [b"raw", "text"]
    assert [(item.tolist(), item.dtype) for item in found["single"]] == [(2.5, np.float32)]
    for name in ("table", "batch", "no rows", "array", "chunks"):
        assert type(found[name]) is type(given[name])
        assert found[name].equals(given[name])


@pytest.mark.parametrize("given", [None, {}])
def test_a_call_without_attachments_has_none(tmp_path: Path, given: dict[str, Any] | None) -> None:
    key = stage(tmp_path, given)
    with ParquetStagingSource(tmp_path) as source:
        assert source.fetch_attachments(key) == {}
        with pytest.raises(KeyError, match="attachment 't': the call has no attachments"):
            source.open_attachment(key, "t")


def test_one_attachment_is_opened_by_name_and_item(tmp_path: Path) -> None:
    key = stage(tmp_path, {"a": [b"x", b"y"], "b": b"z", "c": []})
    with ParquetStagingSource(tmp_path) as source:
        assert source.open_attachment(key, "a", 1).read() == b"y"
        assert source.open_attachment(key, "b").read() == b"z"
        for name, item, message in [
            ("a", None, "attachment 'a': it is a list of 2; name an item 0 to 1"),
            ("a", 2, "attachment 'a': it has no item 2; name an item 0 to 1"),
            ("b", 0, "attachment 'b': it is no list and has no item 0; leave the item out"),
            ("c", 0, "attachment 'c': it is an empty list"),
            ("d", None, "attachment 'd': the call has no such attachment; it has 'a', 'b', 'c'"),
        ]:
            with pytest.raises(KeyError) as caught:
                source.open_attachment(key, name, item)
            assert caught.value.args[0].endswith(message)


def test_a_large_attachment_streams_in_parts(tmp_path: Path) -> None:
    tensor = np.random.default_rng(0).integers(0, 255, (40, 1 << 20), np.uint8)
    key = stage(tmp_path, {"small": b"s", "big": tensor, "again": tensor.copy()})
    store = CountingStore(tmp_path)
    with ParquetStagingSource("", store=store) as source:
        views = source.fetch_attachments(key)
        before = store.bytes_read()
        parts = [part.nbytes for part in views["big"].chunks()]  # type: ignore[union-attr]
        assert parts == [8 << 20] * 5
        assert before < 200_000
        assert (views["again"].read() == tensor).all()  # type: ignore[union-attr]
    # the same bytes are there once
    assert segment_path(tmp_path).stat().st_size < 1.2 * tensor.nbytes


def test_a_damaged_attachment_is_named(store: CountingStore, source: ParquetStagingSource) -> None:
    (key, *_) = write_segment(store, chain(calls=1), [{"t": np.zeros(4, np.float32)}])
    view = source.open_attachment(key, "t")
    for wrong, message in [
        ({"sha256": bytes(32)}, "have the hash"),
        ({"shape": (5,)}, "no float32 of shape"),
        ({"dtype": "float128"}, "not known here"),
        ({"dtype": "arrow:table"}, "cannot be read as arrow:table"),
        ({"media_row": None}, "no media row"),
        ({"media_row": 7}, "it has no row 7"),
        ({"nbytes": 8, "shape": (2,)}, "is not part 0"),
    ]:
        odd = replace(StoredAttachment("t", 0, "float32", (4,), 16, view.sha256, 1), **wrong)
        reader = SegmentReader(store, name_of(key))
        with pytest.raises(ValueError, match=r"default/|somewhere") as caught:
            AttachmentView(odd, "somewhere", partial(media_parts, reader)).read()
        assert message in str(caught.value)
