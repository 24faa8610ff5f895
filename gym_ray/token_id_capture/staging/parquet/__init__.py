"""Staged calls and token records as Parquet segments: the only room of staging that loads pyarrow.

Nothing outside imports its modules one by one, but for the names that are given here.
"""

from gym_ray.token_id_capture.staging.parquet.attachment_reading import AttachmentView
from gym_ray.token_id_capture.staging.parquet.compaction import CompactionReport, CompactionRules, compact
from gym_ray.token_id_capture.staging.parquet.ipc import decode_call, encode_call
from gym_ray.token_id_capture.staging.parquet.places import open_staging_store
from gym_ray.token_id_capture.staging.parquet.staging_sink import ParquetStagingSink
from gym_ray.token_id_capture.staging.parquet.staging_source import ParquetStagingSource
from gym_ray.token_id_capture.staging.parquet.survey import (
    ListedCall,
    StoreSurvey,
    list_calls,
    list_partitions,
    survey_store,
)
from gym_ray.token_id_capture.staging.parquet.token_lineage import ParquetLineageResolver
from gym_ray.token_id_capture.staging.parquet.token_sink import ParquetTokenSink
from gym_ray.token_id_capture.staging.parquet.token_source import ParquetTokenSource

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
