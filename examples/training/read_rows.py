"""Training rows as numpy arrays: out of the records of a run, or straight from its token directory.

Collect with ``++token_id_capture.training_rows=all``, as the README shows, then:

    python examples/training/read_rows.py results/trained.jsonl
    python examples/training/read_rows.py results/trained.jsonl --tokens results/tokens

The second form needs no rows in the records, but the captures: a run keeps those of delivered rollouts with
``++token_id_capture.retire_after_delivery=false``.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gym_ray.token_id_capture import TokenCaptureStore
from gym_ray.token_id_capture.assembly import Ending, assemble


@dataclass(frozen=True)
class Sample:
    """One sequence to learn from: n tokens, each with a mark and a log probability (0.0 where none was sampled)."""

    name: str
    reward: float | None
    token_ids: NDArray[Any]
    loss_mask: NDArray[np.bool_]
    log_probs: NDArray[np.float32]


def samples_of_record(record: dict[str, Any]) -> Iterator[Sample]:
    """Read the rows that stand in a record, without those that must not be learned from."""
    for row in record.get("_ng_training_rows", []):
        if row["mask_sample"]:
            continue
        log_probs = np.zeros(len(row["token_ids"]), np.float32)
        policy = [np.arange(span["start"], span["end"]) for span in row["spans"] if span["kind"] == "policy"]
        log_probs[np.concatenate(policy)] = row["policy_log_probs"]
        yield Sample(
            f"{row['rollout_id']} {row['chain_id']}",
            record.get("reward"),
            np.array(row["token_ids"], np.int64),
            np.array(row["loss_mask"], np.bool_),
            log_probs,
        )


def samples_of_files(store: TokenCaptureStore, record: dict[str, Any]) -> Iterator[Sample]:
    """Build the main chain of a record's rollout anew from its token files, unless the record is masked."""
    if record.get("mask_sample"):
        return
    rollout_id = rollout_of(record)
    entries, problems = store.read_packed(rollout_id)
    lost = store.is_incomplete(rollout_id)
    ending = Ending(verified_response=record.get("response"))
    rollout = assemble(rollout_id, entries, incomplete=lost, problems=problems, ending=ending)
    for row in rollout.rows():
        if not row.mask_sample:
            name = f"{row.rollout_id} {row.chain_id}"
            token_ids = row.token_ids.astype(np.int64)
            yield Sample(name, record.get("reward"), token_ids, row.loss_mask(), row.dense_log_probs())


def rollout_of(record: dict[str, Any]) -> str:
    """Return the id under which a record's calls were captured."""
    attempt = record.get("_ng_attempt_index") or 0
    base = f"{record['_ng_task_index']}-{record['_ng_rollout_index']}"
    return f"{base}-a{attempt}" if attempt else base


def why_nothing(record: dict[str, Any], store: TokenCaptureStore | None) -> str:
    """Say why a record gives no sample."""
    captured = record.get("_ng_token_capture")
    if captured is None:
        return "its agent takes no part in token capture"
    if record.get("mask_sample"):
        return ", ".join(["masked", *captured.get("mask_reasons", [])])
    if store is None:
        return "collect with token_id_capture.training_rows=all"
    return "its token files were removed when it was delivered; see retire_after_delivery"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="rollouts.jsonl of a run")
    parser.add_argument("--tokens", type=Path, help="read the run's token_id_capture.dir in place of the rows")
    args = parser.parse_args()
    if not args.records.is_file():
        parser.error(f"{args.records}: no such file; name the records of a run")
    if args.tokens and not args.tokens.is_dir():
        parser.error(f"{args.tokens}: no such directory; name the token_id_capture.dir of the run")
    store = TokenCaptureStore(args.tokens) if args.tokens else None
    with args.records.open() as lines:
        for record in map(json.loads, lines):
            samples = list(samples_of_record(record) if store is None else samples_of_files(store, record))
            if not samples:
                print(f"{rollout_of(record)}: nothing to learn from ({why_nothing(record, store)})")
            for sample in samples:
                learned = sample.log_probs[sample.loss_mask]
                print(
                    f"{sample.name}: reward {sample.reward}, {sample.token_ids.size} tokens, "
                    f"{learned.size} to learn from, mean log prob {learned.mean():.3f}"
                )


if __name__ == "__main__":
    main()
