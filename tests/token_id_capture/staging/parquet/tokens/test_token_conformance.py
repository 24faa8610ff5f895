"""The token sink, source and resolver keep what the protocols promise, on every kind of store."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest

from gym_ray.storage.opening import open_store
from gym_ray.testing.lagging_store import LaggingStore
from gym_ray.testing.s3_server import s3_server
from gym_ray.testing.token_conformance import run_token_conformance
from gym_ray.token_id_capture.staging.parquet import ParquetLineageResolver, ParquetTokenSink, ParquetTokenSource

CHECKS = 16


async def passed(where: str, **options: Any) -> list[str]:
    return await run_token_conformance(
        lambda: ParquetTokenSink(where, **options),
        lambda: ParquetTokenSource(where, **options),
        lambda: ParquetLineageResolver(where, **options),
    )


@pytest.mark.parametrize("trust_listings", [False, True])
async def test_a_directory(tmp_path: Path, trust_listings: bool) -> None:
    assert len(await passed(str(tmp_path), trust_listings=trust_listings)) == CHECKS


async def test_memory() -> None:
    assert len(await passed(f"memory://{secrets.token_hex(6)}")) == CHECKS


@pytest.mark.parametrize("lag", [1, 7, 1000])
async def test_late_listings(lag: int) -> None:
    """No listing shows the newest names; each client is behind on its own."""
    url = f"memory://{secrets.token_hex(6)}"

    def behind() -> dict[str, Any]:
        return {"store": LaggingStore(open_store(url), lag)}

    checks = await run_token_conformance(
        lambda: ParquetTokenSink(url, **behind()),
        lambda: ParquetTokenSource(url, **behind()),
        lambda: ParquetLineageResolver(url, **behind()),
    )
    assert len(checks) == CHECKS


@pytest.mark.timeout(240)  # every client of every check reads all footers, from a server in this process
async def test_s3() -> None:
    with s3_server() as server:
        store = open_store(server.new_url(), storage_options=server.options())
        try:
            assert len(await passed("s3://shared", store=store, trust_listings=True)) == CHECKS
        finally:
            store.close()
