from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gym_ray.errors import DamagedRecordError, RefusedRecordError
from gym_ray.testing.numbered_calls import numbered_call
from gym_ray.token_id_capture.staging.parquet.calls import call_segments, ipc
from gym_ray.token_id_capture.staging.parquet.calls.ipc import decode_call, encode_call
from gym_ray.token_id_capture.staging.parquet.calls.staging_sink import ParquetStagingSink
from gym_ray.token_id_capture.staging.parquet.calls.staging_source import ParquetStagingSource


def media() -> dict[str, Any]:
    pixels = np.arange(24, dtype=">f4").reshape(2, 3, 4)[:, ::-1]
    return {"pixels": pixels, "list": [b"a", "é", np.array(3, np.int64)], "empty": b"", "again": pixels.copy()}


@pytest.mark.parametrize("extras", [None, {}, {"a": [1.5, -0.0, None, "é"]}])
def test_a_record_comes_back_as_it_was(extras: dict[str, Any] | None) -> None:
    record = numbered_call(1, extras=extras)
    decoded, attachments = decode_call(encode_call(record, None))
    assert decoded == record
    assert decoded.extras == extras
    assert decoded.compute_digest() == record.digest
    assert attachments is None


def test_no_attachments_are_not_the_same_as_none() -> None:
    assert decode_call(encode_call(numbered_call(1), {}))[1] == []


def test_what_was_sent_is_staged_as_if_it_had_been_handed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (call_segments, ipc):
        monkeypatch.setattr(module, "MEDIA_PART_BYTES", 16)
    record = numbered_call(1)
    sent = encode_call(record, media())
    monkeypatch.undo()
    with ParquetStagingSink(tmp_path) as sink:
        result = sink.stage(record, attachments=media())
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(ipc, "MEDIA_PART_BYTES", 16)
            decoded, attachments = decode_call(sent)
        assert sink.stage_prepared(decoded, attachments) == result
        assert sink.stats().repeated == 1
    with ParquetStagingSink(tmp_path) as other, ParquetStagingSource(tmp_path) as source:
        key = other.stage_prepared(decoded, attachments).staging_key
        assert key is not None
        views = source.fetch_attachments(key)
        assert np.array_equal(views["pixels"].read(), media()["pixels"])  # type: ignore[union-attr]
        assert [view.read() for view in views["list"]][:2] == [b"a", "é"]  # type: ignore[union-attr]


def test_what_cannot_be_staged_cannot_be_sent() -> None:
    with pytest.raises(RefusedRecordError, match="'x'"):
        encode_call(numbered_call(1), {"x": object()})


@pytest.mark.parametrize("cut", [0, 1, 8, 100, 2000, -1, -100])
def test_bytes_that_were_cut_are_named(cut: int) -> None:
    data = encode_call(numbered_call(1), {"x": np.arange(1000)})
    end = len(data) - 1100 if cut == -1 else cut if cut >= 0 else len(data) // 2
    with pytest.raises(DamagedRecordError, match="the encoded call cannot be read"):
        decode_call(data[:end])


def test_changed_bytes_are_found() -> None:
    record = numbered_call(1, 1000)
    data = encode_call(record, {"x": np.arange(1000, dtype=np.uint16)})
    for found in (record.token_ids_delta.array.tobytes(), np.arange(1000, dtype=np.uint16).tobytes()):
        changed = bytearray(data)
        changed[data.index(found) + 400] ^= 1
        with pytest.raises(DamagedRecordError, match=r"digest is|does not give its hash"):
            decode_call(bytes(changed))


def test_another_stream_is_refused() -> None:
    out = pa.BufferOutputStream()
    table = pa.table({"a": [1]})
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    with pytest.raises(DamagedRecordError, match="no segment of a staging store"):
        decode_call(out.getvalue().to_pybytes())


@pytest.mark.parametrize("nbytes", [0, 2001, 2003, 2**31, 2**62, 2**63, 2**64 - 1])
def test_a_wrong_size_of_an_attachment_is_found(nbytes: int) -> None:
    data = encode_call(numbered_call(1), {"x": np.arange(1001, dtype=np.uint16)})
    said, wrong = (2002).to_bytes(8, "little"), nbytes.to_bytes(8, "little")
    with pytest.raises(DamagedRecordError, match="the encoded call cannot be read"):
        decode_call(data.replace(said, wrong, 1))  # the second is that of a buffer


def test_no_number_that_became_huge_is_more_than_an_error() -> None:
    data = bytearray(encode_call(numbered_call(1), {"x": np.arange(30), "l": [b"1"]}))
    whole = 0
    for at in range(7, len(data), 8):
        data[at] ^= 0x80
        try:
            decode_call(bytes(data))
            whole += 1
        except DamagedRecordError:
            pass
        data[at] ^= 0x80
    assert 0 < whole < len(data) // 8
