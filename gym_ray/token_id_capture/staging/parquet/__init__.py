"""Staged calls and token records as Parquet segments: the only room of staging that loads pyarrow.

Nothing outside imports its modules one by one, but for the names that are given here.
"""

from gym_ray.token_id_capture.staging.parquet.calls.attachment_reading import AttachmentView
from gym_ray.token_id_capture.staging.parquet.calls.ipc import decode_call, encode_call
from gym_ray.token_id_capture.staging.parquet.calls.staging_sink import ParquetStagingSink
from gym_ray.token_id_capture.staging.parquet.calls.staging_source import ParquetStagingSource
from gym_ray.token_id_capture.staging.parquet.segments.places import open_staging_store
from gym_ray.token_id_capture.staging.parquet.tokens.token_lineage import ParquetLineageResolver
from gym_ray.token_id_capture.staging.parquet.tokens.token_sink import ParquetTokenSink
from gym_ray.token_id_capture.staging.parquet.tokens.token_source import ParquetTokenSource
from gym_ray.token_id_capture.staging.parquet.upkeep.compaction import CompactionReport, CompactionRules, compact
from gym_ray.token_id_capture.staging.parquet.upkeep.survey import (
    ListedCall,
    StoreSurvey,
    list_calls,
    list_partitions,
    survey_store,
)

__all__ = [
    "AttachmentView",
    "CompactionReport",
    "CompactionRules",
    "ListedCall",
    "ParquetLineageResolver",
    "ParquetStagingSink",
    "ParquetStagingSource",
    "ParquetTokenSink",
    "ParquetTokenSource",
    "StoreSurvey",
    "compact",
    "decode_call",
    "encode_call",
    "list_calls",
    "list_partitions",
    "open_staging_store",
    "survey_store",
]
