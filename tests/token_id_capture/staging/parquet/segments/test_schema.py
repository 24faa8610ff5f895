from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gym_ray.token_id_capture.staging.parquet.segments.schema import (
    BASE_COLUMNS,
    CALLS_SCHEMA,
    SegmentFacts,
    check_metadata,
    file_metadata,
    writer_options,
)

FACTS = SegmentFacts("calls", "0011223344556677", "p/w/0.calls.parquet")


def as_bytes(metadata: dict[str, str]) -> dict[bytes, bytes]:
    return {key.encode(): value.encode() for key, value in metadata.items()}


def test_what_a_file_says_of_itself() -> None:
    assert check_metadata(as_bytes(file_metadata(FACTS)), file="f", kind="calls") == FACTS


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"gym_ray.format": "other"}, "no segment of a staging store"),
        ({"gym_ray.version": "2"}, "has version 2"),
        ({"gym_ray.kind": "tokens"}, "holds rows of kind tokens, not calls"),
        ({"gym_ray.kind": "x"}, "holds rows of kind x, not calls"),
    ],
)
def test_foreign_files_are_named(changed: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=f"^s3://b/f .*{problem}"):
        check_metadata(as_bytes({**file_metadata(FACTS), **changed}), file="s3://b/f", kind="calls")


def test_a_file_without_metadata_is_foreign() -> None:
    with pytest.raises(ValueError, match="no segment"):
        check_metadata(None, file="f", kind="calls")


def test_a_snapshot_is_made_of_the_first_columns() -> None:
    assert CALLS_SCHEMA.names[1 : 1 + len(BASE_COLUMNS)] == list(BASE_COLUMNS)
    assert CALLS_SCHEMA.names[-3:] == ["extras_json", "attachments", "media_data"]


def test_how_files_are_encoded() -> None:
    table = pa.table(
        {
            "row_kind": ["call"],
            "rollout_id": ["r"],
            "mode": ["text"],
            "log_probs": pa.array([[0.5]], pa.list_(pa.float32())),
        }
    )
    file = io.BytesIO()
    with pq.ParquetWriter(file, table.schema, **writer_options()) as writer:
        writer.write_table(table)
    columns = {
        column["path_in_schema"]: column for column in pq.read_metadata(file).to_dict()["row_groups"][0]["columns"]
    }
    assert "BYTE_STREAM_SPLIT" in columns["log_probs.list.element"]["encodings"]
    assert {column["compression"] for column in columns.values()} == {"ZSTD"}
    assert [name for name, column in columns.items() if column["statistics"]] == ["rollout_id"]
