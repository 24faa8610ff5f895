"""Rollout ids, attempts and the ``/ng-rollout`` prefix: one rule for the character set, one for each URL (A §2-3).

A call belongs to a rollout because its URL says so. Everything here is pure, so that agents, servers and collectors
agree on the answer by calling the same function.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from gym_ray.errors import RolloutIdError

__all__ = [
    "ROLLOUT_PREFIX",
    "TOKEN_CAPTURE_SEGMENT",
    "AgentUrls",
    "PrefixedPath",
    "apply_rollout_prefix",
    "check_rollout_id",
    "current_rollout_id",
    "derive_rollout_id",
    "restore_prefix_in_location",
    "rollout_path_prefix",
    "split_resources_prefix",
    "split_rollout_prefix",
]

ROLLOUT_PREFIX = "/ng-rollout"
TOKEN_CAPTURE_SEGMENT = "/training-token-capture"  # noqa: S105 - a path segment, not a secret

_ROLLOUT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LONGEST_ID = 230
"""Characters of an id: with the longest ending that we give to file names, they fit into the 255 bytes of a name."""
_PREFIXED = re.compile(r"/ng-rollout/([^/]+)(/training-token-capture(?=/))?(/.*)", re.DOTALL)

current_rollout_id: ContextVar[str | None] = ContextVar("current_rollout_id", default=None)
"""Id of the rollout whose request is being handled, None outside of one (A12)."""


def check_rollout_id(value: object, field: str = "rollout id") -> str:
    """Return ``value`` if it is a valid rollout id (A25) that a file can be named after.

    Raises:
        RolloutIdError: It is not; the message names ``field`` and shows the value.
    """
    if isinstance(value, str) and value.isascii() and _ROLLOUT_ID.fullmatch(value):
        if len(value) <= _LONGEST_ID:
            return value
        raise RolloutIdError(
            f"{field}: {value!r} cannot be a rollout id; it has {len(value)} characters, use at most {_LONGEST_ID}"
        )
    raise RolloutIdError(
        f"{field}: {value!r} cannot be a rollout id; use A-Z a-z 0-9 . _ - and begin with a letter or digit"
    )


def derive_rollout_id(body: object) -> str | None:
    """Derive the capture key of one attempt from a run body, a stored record or a model object (A21, A22, D20).

    Returns:
        ``_ng_rollout_id``, else ``<task>-<rollout>``, with ``-a<n>`` for attempt n > 0; None without either.

    Raises:
        RolloutIdError: An explicit or derived id breaks the character rule, or the attempt is not a number.
    """
    explicit = _field(body, "_ng_rollout_id")
    if explicit is None and not isinstance(body, Mapping):
        explicit = _field(body, "capture_rollout_id")  # how typed run requests name it (D21)
    attempt = _attempt_suffix(_field(body, "_ng_attempt_index"))
    if explicit is not None:
        return check_rollout_id(explicit, "_ng_rollout_id") + attempt
    task, rollout = _field(body, "_ng_task_index"), _field(body, "_ng_rollout_index")
    if task is None or rollout is None:
        return None
    return check_rollout_id(f"{task}-{rollout}", "_ng_task_index/_ng_rollout_index") + attempt


def _field(body: object, name: str) -> Any:
    if isinstance(body, Mapping):
        return body.get(name)
    extra = getattr(body, "__pydantic_extra__", None)
    if isinstance(extra, Mapping) and name in extra:
        return extra[name]
    return getattr(body, name, None)


def _attempt_suffix(value: Any) -> str:
    if value is None:
        return ""
    try:
        attempt = int(value)
    except (TypeError, ValueError, OverflowError):
        raise RolloutIdError(f"_ng_attempt_index: {value!r} is not a whole number") from None
    return f"-a{attempt}" if attempt > 0 else ""


def rollout_path_prefix(rollout_id: str | None, token_capture: bool = False) -> str:
    """Return ``/ng-rollout/<id>`` (with the training segment when asked), or "" without an id (D24).

    Every rollout URL is built here. The id is percent-encoded: a valid one stays as it is, and one that was taken out
    of a request unchecked (A16) can add no segment, query or fragment to the URL (W24).
    """
    if not rollout_id:
        return ""
    segment = quote(rollout_id, safe="", errors="surrogatepass")
    return f"{ROLLOUT_PREFIX}/{segment}" + (TOKEN_CAPTURE_SEGMENT if token_capture else "")


def apply_rollout_prefix(base_url: str, rollout_id: str | None, token_capture: bool = False) -> str:
    """Return ``base_url`` with the prefix behind it; without an id it comes back as it is (A27)."""
    prefix = rollout_path_prefix(rollout_id, token_capture)
    return base_url.rstrip("/") + prefix if prefix else base_url


@dataclass(frozen=True, slots=True)
class PrefixedPath:
    """A request path split at its rollout prefix."""

    rollout_id: str
    token_capture: bool
    rest: str

    @property
    def prefix(self) -> str:
        """What was removed from the front of the path, as it stands in a URL."""
        return rollout_path_prefix(self.rollout_id, self.token_capture)


def split_rollout_prefix(path: str) -> PrefixedPath | None:
    """Split a decoded ASGI path at its rollout prefix; None when it has none (A7, A8). The id is not checked (A16)."""
    if not path.startswith("/ng-rollout/") or path.endswith("\n"):
        return None
    match = _PREFIXED.fullmatch(path)
    if match is None:
        return None
    return PrefixedPath(match.group(1), match.group(2) is not None, match.group(3))


def split_resources_prefix(path: str) -> PrefixedPath | None:
    """Split as resources servers do: an id that breaks the character rule is left in the path (A34)."""
    split = split_rollout_prefix(path)
    if split is None or not _ROLLOUT_ID.fullmatch(split.rollout_id) or not split.rollout_id.isascii():
        return None
    if not split.token_capture:
        return split
    return PrefixedPath(split.rollout_id, False, TOKEN_CAPTURE_SEGMENT + split.rest)


def restore_prefix_in_location(location: str, status: int, request_host: str, prefix: str) -> str:
    """Put a removed prefix back into a redirect's ``Location``, so that the followed call stays captured (A17, A18).

    What is no URL stays as it is: it is the client's to make sense of.
    """
    if not 300 <= status <= 399:
        return location
    try:
        parts = urlsplit(location)
    except ValueError:
        return location
    if (parts.netloc and parts.netloc != request_host) or not parts.path.startswith("/"):
        return location
    if parts.path == prefix or parts.path.startswith(prefix + "/"):
        return location
    return urlunsplit(parts._replace(path=prefix + parts.path))


@dataclass(frozen=True, slots=True)
class AgentUrls:
    """The URL helpers an agent needs (A27-A30).

    Args:
        correlate: Evaluation capture or this agent's training capture is on (A28).
        token_capture: This agent's training capture is on.
        servers: Root URL by server name.
    """

    correlate: bool
    token_capture: bool
    servers: Mapping[str, str]

    def rollout_id_from_run(self, body: object) -> str | None:
        """Return the id of a run body, or None when correlation is off or the body names none."""
        return derive_rollout_id(body) if self.correlate else None

    def url_path_for_run(self, url_path: str, body: object) -> str:
        """Return ``url_path`` behind the run's prefix."""
        return rollout_path_prefix(self.rollout_id_from_run(body), self.token_capture) + url_path

    def base_url_for_run(self, base_url: str, body: object) -> str:
        """Return a root URL behind which an SDK's own version suffix goes."""
        return apply_rollout_prefix(base_url, self.rollout_id_from_run(body), self.token_capture)

    @staticmethod
    def url_path_for_request(url_path: str, rollout_id: str | None, request_path: str | None) -> str:
        """Carry an inbound prefix on; not gated on configuration (A29)."""
        token_capture = f"{TOKEN_CAPTURE_SEGMENT}/" in (request_path or "")
        return rollout_path_prefix(rollout_id, token_capture) + url_path

    def resolve_model_base_url(self, name: str, rollout_id: str | None = None) -> str:
        """Return the ``…/v1`` URL of a model server.

        Raises:
            KeyError: No server has that name.
        """
        return apply_rollout_prefix(self.servers[name], rollout_id, self.token_capture).rstrip("/") + "/v1"
