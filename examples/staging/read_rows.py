"""Training rows out of staged calls: proved by the library, or read from the Parquet files by pyarrow or Ray Data.

    python examples/staging/read_rows.py "$(pwd)/staged" ledger                     proved rows, with their media
    python examples/staging/read_rows.py "$(pwd)/staged" ledger --records run.jsonl  with the rewards of a run
    python examples/staging/read_rows.py "$(pwd)/staged" ledger --with pyarrow       tokens from the files alone
    python examples/staging/read_rows.py "$(pwd)/staged" ledger --with ray           the same on a Ray cluster

The first way is the one to train on: it checks every digest, and which calls make up the row. The other two show what
the files hold, for your own pipelines: a call is one row, its tokens are those that its parent does not have. The last
one needs ``gym-ray[data]``.
"""

import argparse
import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray

from gym_ray.token_id_capture.staging import (
    FileCaptureLedger,
    RolloutManifest,
    build_receipt,
    verify_and_linearize,
)
from gym_ray.token_id_capture.staging.parquet import ParquetStagingSource

LEDGER = ".lineage.jsonl"
COLUMNS = ["row_kind", "rollout_id", "model_call_id", "parent_call_id", "cum_len"]
COLUMNS += ["token_ids", "token_ids_wide", "token_mask", "log_probs"]


@dataclass(frozen=True)
class Row:
    """One sequence to learn from: n tokens, each with a mark and a log probability (0.0 where none was sampled)."""

    rollout_id: str
    token_ids: NDArray[Any]
    loss_mask: NDArray[np.bool_]
    log_probs: NDArray[np.float32]


async def manifests_of(directory: Path, ids: list[str]) -> list[RolloutManifest]:
    """Return what a ledger says of each rollout; a running model server is asked by ``ControlClient`` instead."""
    ledger = FileCaptureLedger(directory)
    found = [await ledger.manifest(rollout_id) for rollout_id in ids]
    await ledger.close()
    return found


def records_of(path: Path | None) -> dict[str, dict[str, Any]]:
    """Return the records of a run by rollout id; the last attempt counts."""
    found = {}
    for line in path.read_text().splitlines() if path else ():
        record = json.loads(line)
        attempt = record.get("_ng_attempt_index") or 0
        base = f"{record['_ng_task_index']}-{record['_ng_rollout_index']}"
        found[f"{base}-a{attempt}" if attempt else base] = record
    return found


def proved_rows(
    where: str, manifests: list[RolloutManifest], records: dict[str, dict[str, Any]]
) -> Iterator[tuple[Row, float | None, dict[str, Any]]]:
    """Yield the rows of rollouts that can be trained on, each with its reward and its media as ``call.name``."""
    with ParquetStagingSource(where) as source:
        for manifest in manifests:
            record = records.get(manifest.rollout_id, {})
            receipt = build_receipt(manifest, record.get("response"), reward=record.get("reward"))
            if receipt.capture_poisoned or receipt.failure_reason:
                print(f"{manifest.rollout_id}: nothing to learn from ({receipt.failure_reason})")
                continue
            keys = {row.model_call_id: row.staging_key for row in receipt.manifest}
            try:
                row = verify_and_linearize(receipt, source.fetch(list(keys.values())))
            except (KeyError, ValueError) as error:  # calls that are gone or damaged, or do not make up a row
                print(f"{manifest.rollout_id}: nothing to learn from ({error})")
                continue
            media: dict[str, Any] = {}
            for number, call_id in enumerate(row.model_call_ids):
                for name, kept in source.fetch_attachments(keys[call_id]).items():
                    views = kept if isinstance(kept, list) else [kept]
                    media |= {f"{number}.{name}[{at}]": view.read() for at, view in enumerate(views)}
            ids, mask = np.asarray(row.token_ids), np.asarray(row.token_mask, np.bool_)
            yield Row(row.rollout_id, ids, mask, np.asarray(row.logprobs, np.float32)), receipt.reward, media


def row_of_calls(calls: pa.Table) -> Row:
    """Join the calls of one rollout's main chain: those that lead to the longest sequence."""
    by_id = {call["model_call_id"]: call for call in calls.select(COLUMNS).to_pylist()}
    call = max(by_id.values(), key=lambda one: one["cum_len"])
    chain = [call]
    while chain[0]["parent_call_id"] is not None:
        chain.insert(0, by_id[chain[0]["parent_call_id"]])
    wide = any(one["token_ids"] is None for one in chain)  # a call with an id beyond 31 bits has its ids there
    ids = [one["token_ids_wide"] if one["token_ids"] is None else one["token_ids"] for one in chain]
    return Row(
        call["rollout_id"],
        np.concatenate([np.array(part, np.uint64 if wide else np.int64) for part in ids]),
        np.concatenate([np.array(one["token_mask"], np.bool_) for one in chain]),
        np.concatenate([np.array(one["log_probs"], np.float32) for one in chain]),
    )


def calls_alone(rows: pa.Table) -> pa.Table:
    """Leave out the rows that hold media; they stand behind the calls of their file."""
    return rows.filter(pc.equal(rows["row_kind"], "call"))


def rows_by_pyarrow(files: list[str]) -> Iterator[Row]:
    calls = calls_alone(ds.dataset(files, format="parquet").to_table(COLUMNS))
    for rollout_id in sorted(set(calls["rollout_id"].to_pylist())):
        yield row_of_calls(calls.filter(pc.equal(calls["rollout_id"], rollout_id)))


def rows_by_ray(files: list[str]) -> Iterator[Row]:
    import ray.data

    def joined(calls: pa.Table) -> dict[str, Any]:
        row = row_of_calls(calls)
        return {name: [getattr(row, name)] for name in Row.__dataclass_fields__}

    calls = ray.data.read_parquet(files, columns=COLUMNS).map_batches(calls_alone, batch_format="pyarrow")
    by_rollout = calls.groupby("rollout_id", num_partitions=4)
    rows = by_rollout.map_groups(joined, batch_format="pyarrow").take_all()
    for row in sorted(rows, key=lambda one: one["rollout_id"]):
        yield Row(row["rollout_id"], *(np.asarray(row[name]) for name in ("token_ids", "loss_mask", "log_probs")))


def said_of(row: Row) -> str:
    learned = row.log_probs[row.loss_mask]
    return (
        f"{row.rollout_id}: {row.token_ids.size} tokens, {learned.size} to learn from, "
        f"mean log prob {learned.mean():.3f}"
    )


def shown(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__


def print_proved(where: str, ledger: Path, records: Path | None) -> None:
    ids = [path.name.removesuffix(LEDGER) for path in sorted(ledger.glob(f"*{LEDGER}"))]
    manifests = asyncio.run(manifests_of(ledger, ids))
    for row, reward, media in proved_rows(where, manifests, records_of(records)):
        pictures = "".join(f"; {name}: {shown(value)}" for name, value in media.items())
        print(f"{said_of(row)}, reward {reward}{pictures}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("where", help="where the calls were staged")
    parser.add_argument("ledger", type=Path, help="directory of the ledger")
    parser.add_argument("--records", type=Path, help="rollouts.jsonl of the run")
    parser.add_argument("--with", choices=["library", "pyarrow", "ray"], default="library", dest="reader")
    args = parser.parse_args()
    if not args.ledger.is_dir():
        parser.error(f"{args.ledger}: no such directory; name the token_id_capture.dir of the run")
    if args.reader == "library":
        print_proved(args.where, args.ledger.absolute(), args.records)
        return
    files = sorted(map(str, Path(args.where).rglob("*.calls.parquet")))
    if not files:
        parser.error(f"{args.where} holds no segments of calls")
    for row in rows_by_pyarrow(files) if args.reader == "pyarrow" else rows_by_ray(files):
        print(said_of(row))


if __name__ == "__main__":
    main()
