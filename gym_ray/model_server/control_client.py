"""How a trainer asks a model server for manifests, and retires or deletes rollouts (C223-C226).

Everything is checked before the first request, so a bad list changes nothing; and no answer is taken for that of
another rollout.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ValidationError

from gym_ray.correlation import check_rollout_id
from gym_ray.errors import ControlRequestError, RolloutRetiredError
from gym_ray.model_server.control_routes import CONTROL_PREFIX, MAX_IDS, check_bearer
from gym_ray.token_id_capture.staging import RolloutManifest, RolloutRemoval, distinct_rollout_ids

__all__ = ["ControlClient"]

_AnswerT = TypeVar("_AnswerT", bound=BaseModel)

_SHOWN: Final = 2000
"""Characters of a refusal's body that an error shows."""


class ControlClient:
    """Talks to the control routes of one model server; a context manager that is closed when its block is left.

    Rollout ids have at most 230 letters, digits, ``.``, ``_`` and ``-``, the first a letter or digit (A25).

    Args:
        base_url: Where the server is.
        token: The secret of its control routes.
        timeout_s: Longest wait for a connection, for the answer to begin and for it to go on; an answer that is not
            whole that long after the request is given up.
        transport: Stands in for the network in tests.

    Raises:
        ValueError: The URL or the token is empty or of no use, or the timeout is not positive.
    """

    def __init__(
        self, base_url: str, token: str, timeout_s: float, *, transport: httpx.BaseTransport | None = None
    ) -> None:
        if not base_url or not token:
            raise ValueError("a control client needs a base URL and a token, and neither may be empty")
        if not 0 < timeout_s < math.inf:
            raise ValueError(f"timeout_s must be positive and finite, got {timeout_s!r}")
        parts = urlsplit(base_url)
        if parts.username is not None or parts.query or parts.fragment:  # it stands in every message
            raise ValueError("the base URL of a control client has a user, a query or a fragment; leave them out")
        self._url, self._timeout_s = base_url.rstrip("/") + CONTROL_PREFIX, timeout_s
        self._client = httpx.Client(
            headers={b"authorization": check_bearer(token)},
            timeout=timeout_s,
            transport=transport,
            trust_env=False,  # a proxy of the environment is not to see the secret
        )

    def __enter__(self) -> ControlClient:
        """Return the client; leaving the block closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the client."""
        self.close()

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()

    def manifest(self, rollout_id: str) -> RolloutManifest:
        """Return the manifest of a rollout; an empty one if the server knows nothing of it (C221).

        Raises:
            RolloutIdError: The id is none.
            RolloutRetiredError: The rollout is retired (C225).
            ControlRequestError: The server refused, did not answer in time, or answered for another rollout.
        """
        path = f"/rollouts/{check_rollout_id(rollout_id)}/manifest"
        manifest = self._ask("GET", path, RolloutManifest)
        if manifest.rollout_id != rollout_id:
            problem = f"asked for the manifest of {rollout_id!r}, got that of {manifest.rollout_id!r}"
            raise ControlRequestError(f"GET {self._url}{path}: {problem}", 200, "")
        return manifest

    def retire(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        """Close rollouts for good and remove what the server knows of them; can be repeated (C230).

        Args:
            rollout_ids: Any number; repeated ones count once.

        Raises:
            TypeError: One string was given.
            RolloutIdError: An id is none; nothing was asked.
            ControlRequestError: A batch was refused or not answered; those before it are retired. Repeat it.
        """
        return self._remove("/rollouts/retire", rollout_ids)

    def delete(self, rollout_ids: Sequence[str]) -> RolloutRemoval:
        """Remove what the server knows of rollouts, so that their ids can be used again (C232).

        Args:
            rollout_ids: As for :meth:`retire`.

        Raises:
            TypeError: As :meth:`retire`.
            RolloutIdError: As :meth:`retire`.
            ControlRequestError: As :meth:`retire`.
        """
        return self._remove("/rollouts/delete", rollout_ids)

    def _remove(self, path: str, rollout_ids: Sequence[str]) -> RolloutRemoval:
        wanted = distinct_rollout_ids(rollout_ids)
        removed: list[str] = []
        absent: list[str] = []
        for start in range(0, len(wanted), MAX_IDS):
            batch = wanted[start : start + MAX_IDS]
            answer = self._ask("POST", path, RolloutRemoval, {"rollout_ids": batch})
            if sorted([*answer.removed, *answer.absent]) != sorted(batch):
                problem = "the answer is not about the rollouts that were asked for"
                raise ControlRequestError(f"POST {self._url}{path}: {problem}", 200, "")
            removed += answer.removed
            absent += answer.absent
        return RolloutRemoval(removed=removed, absent=absent)

    def _ask(self, method: str, path: str, kind: type[_AnswerT], body: dict[str, Any] | None = None) -> _AnswerT:
        what = f"{method} {self._url}{path}"
        status, answer = self._send(method, path, body, what)
        if status != httpx.codes.OK:
            text = answer.decode("utf-8", "replace")[:_SHOWN]
            if status == httpx.codes.GONE:
                raise RolloutRetiredError(f"{what}: {text}")
            raise ControlRequestError(f"{what}: HTTP {status}: {text}", status, text)
        try:
            return kind.model_validate_json(answer)
        except ValidationError as error:
            raise ControlRequestError(f"{what}: no {kind.__name__}: {error}", status, "") from error

    def _send(self, method: str, path: str, body: dict[str, Any] | None, what: str) -> tuple[int, bytes]:
        """Return status and body; a server that sends a little now and then cannot draw it out."""
        ends, pieces = time.monotonic() + self._timeout_s, []
        try:
            with self._client.stream(method, self._url + path, json=body) as response:
                for piece in response.iter_bytes():
                    pieces.append(piece)
                    if time.monotonic() > ends:
                        raise httpx.ReadTimeout("the answer had not ended")
        except httpx.TimeoutException as error:
            raise ControlRequestError(f"{what}: no answer within {self._timeout_s:g} s: {error}", 0, "") from error
        except httpx.HTTPError as error:
            raise ControlRequestError(f"{what}: {type(error).__name__}: {error}", 0, "") from error
        return response.status_code, b"".join(pieces)
