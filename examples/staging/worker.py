"""What a framework adds to its inference worker so that a call's tokens and pixels are durable before it is answered.

The few lines are in ``Worker``. The rest makes the file run by itself: a policy that draws bytes at random, pixels, and
the part of a model server, which admits calls and keeps the ledger. Run it, then rebuild the rows:

    python examples/staging/worker.py "$(pwd)/staged" ledger
    python examples/staging/read_rows.py "$(pwd)/staged" ledger

The directory may also be a URL such as ``s3://bucket/staged`` (install ``gym-ray[s3]``). bfloat16 for numpy comes from
``ml_dtypes``; torch tensors can be handed over as they are.
"""

import argparse
import asyncio
import math
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from gym_ray.token_id_capture.adapters.vllm import VLLMCaptureAdapter
from gym_ray.token_id_capture.staging import (
    CaptureAdmission,
    CaptureHost,
    FileCaptureLedger,
    admit,
    checked_coordinates,
    install_capture,
    ledger_commit,
)
from gym_ray.token_id_capture.staging.parquet import ParquetStagingSink, ParquetStagingSource

QUESTIONS = ("What is in the picture?", "And what colour is it?")


class Worker(CaptureHost):
    """An inference worker that stages what it generates."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.weight_version = 0
        self.sink, self.source = ParquetStagingSink(where), ParquetStagingSource(where)
        self.capture = install_capture(
            self, sink=self.sink, weight_version_fn=lambda: self.weight_version, adapter=VLLMCaptureAdapter()
        )

    def answer(self, request: dict[str, Any], pixels: dict[str, Any]) -> dict[str, Any]:
        """Generate, stage tokens and pixels in one durable write, and only then answer."""
        admission = CaptureAdmission.model_validate(request["ng_capture"])
        prefix = self.source.fetch_prefix_token_ids(admission.staging_chain) if admission.staging_chain else None
        call = self.capture.begin_call(admission, prefix_token_ids=prefix)
        try:
            answer = generate(request, prefix)
        except BaseException as error:
            self.capture.fail_call(call, reason=str(error))
            raise
        coords = self.capture.complete_call_from_response(call, answer, attachments=pixels)
        return {**answer, "ng_commit_coords": coords.model_dump(mode="json")}

    def close(self) -> None:
        """Finish what waits."""
        self.sink.close()
        self.source.close()


def generate(request: dict[str, Any], prefix: Any) -> dict[str, Any]:
    """Answer as vLLM does; the policy draws eight bytes, each with the same probability."""
    text = request["messages"][-1]["content"].encode()
    prompt = [*(prefix.tolist() if prefix is not None else []), *text]
    said = np.random.default_rng().integers(32, 127, 8)
    log_prob = -math.log(127 - 32)
    content = [{"token": f"token_id:{token}", "logprob": log_prob} for token in said.tolist()]
    message = {"role": "assistant", "content": bytes(said.tolist()).decode()}
    return {
        "id": f"answer-{len(request['messages'])}",
        "prompt_token_ids": prompt,
        "choices": [{"index": 0, "message": message, "logprobs": {"content": content}, "finish_reason": "length"}],
    }


def image() -> Any:
    """Return what a processor makes of a picture: 3 colours, 32 by 32 pixels."""
    return np.random.default_rng().random((3, 32, 32), np.float32).astype(ml_dtypes.bfloat16)


async def rollout(worker: Worker, ledger: FileCaptureLedger, rollout_id: str) -> None:
    """Do a model server's part for a rollout of two calls; the setting ``external_staging`` does it for you."""
    messages: list[dict[str, Any]] = []
    for number, question in enumerate(QUESTIONS):
        messages = [*messages, {"role": "user", "content": question}]
        admitted_at = time.time()
        admission = await admit(ledger, rollout_id=rollout_id, model_call_id=f"call-{number}", items=messages)
        if admission is None:
            raise SystemExit(f"{rollout_id}: a call was not admitted")
        request = {"messages": messages, "ng_capture": admission.model_dump(mode="json")}
        pixels = {"pixel_values": image()} if number == 0 else {}
        answer = await asyncio.to_thread(worker.answer, request, pixels)
        coords = checked_coordinates(answer.pop("ng_commit_coords"), admission)
        commit = ledger_commit(
            coords,
            admission,
            served=answer,
            response_id=answer["id"],
            request_items=messages,
            admitted_at=admitted_at,
        )
        await ledger.record(commit)
        messages = [*messages, answer["choices"][0]["message"]]


async def run(where: str, directory: Path, rollouts: int) -> None:
    worker, ledger = Worker(where), FileCaptureLedger(directory)
    for number in range(rollouts):
        await rollout(worker, ledger, f"{number}-0")
    await ledger.close()
    worker.close()
    print(f"{worker.sink.stats().staged} calls of {rollouts} rollouts staged in {where}; their ledger: {directory}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("where", help="absolute directory, or URL of an object store")
    parser.add_argument("ledger", type=Path, help="directory of the ledger")
    parser.add_argument("--rollouts", type=int, default=4)
    args = parser.parse_args()
    if any(args.ledger.glob("*.lineage.jsonl")):
        parser.error(f"{args.ledger} holds a ledger of the same rollouts; name another directory")
    asyncio.run(run(args.where, args.ledger.absolute(), args.rollouts))


if __name__ == "__main__":
    main()
