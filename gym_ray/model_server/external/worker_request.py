"""What an inference worker is asked for a captured call: a complete answer, and to stage its tokens first (C243-C247).

The admission travels inside the request. Everything a client says about these members is overruled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_ray.errors import UnsupportedRequestError
from gym_ray.model_server.external.reserved import OFFLOAD_FIELD, without_reserved
from gym_ray.token_id_capture.external_staging import WorkerBackend
from gym_ray.token_id_capture.staging.constants import NG_CAPTURE_FIELD, REQUIRED_PREFIX_FIELD
from gym_ray.token_id_capture.staging.records import CaptureAdmission

__all__ = ["worker_request"]


def worker_request(
    body: Mapping[str, Any], admission: CaptureAdmission | None, backend: WorkerBackend
) -> dict[str, Any]:
    """Return the body of the request to a worker; ``body`` stays as it is.

    Args:
        body: A Chat request, as the client and this server's settings have it.
        admission: What the call was admitted as; None asks for ordinary traffic (C211).
        backend: What the worker is.

    Raises:
        UnsupportedRequestError: It asks for several answers, or for a stream, or it has offload parameters that are no
            object; status 400, a ValueError.
    """
    if body.get("stream"):
        raise UnsupportedRequestError("stream: a captured call is asked of its worker as a whole; leave it out")
    if body.get("n") not in (None, 1) or body.get("n") is True:
        raise UnsupportedRequestError("n: a captured call has one answer; ask for 1 or leave it out")
    asked = {name: value for name, value in without_reserved(body).items() if name != "stream_options"}
    asked["stream"] = False
    if admission is None:
        return asked
    told = admission.model_dump(mode="json")
    if backend == "megatron_worker":
        offload = asked.get(OFFLOAD_FIELD)
        if not isinstance(offload, Mapping | None):
            raise UnsupportedRequestError(f"{OFFLOAD_FIELD}: an object is needed")
        asked[OFFLOAD_FIELD] = {**(offload or {}), NG_CAPTURE_FIELD: told}
    else:
        asked[NG_CAPTURE_FIELD] = told
        asked["return_tokens_as_token_ids"] = True
        if admission.mode == "token_in":
            asked[REQUIRED_PREFIX_FIELD] = []  # the worker resolves the chain (C244)
    return {**asked, "logprobs": True, "top_logprobs": 0}
