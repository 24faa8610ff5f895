"""Staged calls and token records as Parquet segments: the only room of staging that loads pyarrow.

Nothing outside imports its modules one by one, but for the names that are given here.
"""

from gym_ray.token_id_capture.staging.parquet.ipc import decode_call, encode_call
from gym_ray.token_id_capture.staging.parquet.staging_sink import ParquetStagingSink
from gym_ray.token_id_capture.staging.parquet.staging_source import ParquetStagingSource
from gym_ray.token_id_capture.staging.parquet.token_lineage import ParquetLineageResolver
from gym_ray.token_id_capture.staging.parquet.token_sink import ParquetTokenSink
from gym_ray.token_id_capture.staging.parquet.token_source import ParquetTokenSource

__all__ = [
    "ParquetLineageResolver",
    "ParquetStagingSink",
    "ParquetStagingSource",
    "ParquetTokenSink",
    "ParquetTokenSource",
    "decode_call",
    "encode_call",
]
