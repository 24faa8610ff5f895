"""Reach the job server of a Ray cluster, and say in one line what is wrong with it.

Ray's client waits for ever for an answer, tells its troubles in many ways, and lets variables of the environment
override the address that it is given. Here every request has a deadline, every trouble is one :class:`ClusterError`
that says what to do, and no other cluster than the one that was asked for is ever reached. No token is ever part of a
message.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobSubmissionClient

from gym_ray.errors import ClusterError

__all__ = ["LOST_REPLIES", "JobServerClient", "connect", "last_line", "named"]

LOST_REPLIES = (
    requests.exceptions.ConnectionError,
    requests.exceptions.ChunkedEncodingError,
    requests.exceptions.Timeout,
    ConnectionError,
)
"""What no reply looks like: the request may have arrived or not."""

_CONNECT_S = 10.0
_METADATA = "/api/v0/cluster_metadata"
_REMEDY = (
    "give the HTTP address of the job server of a running cluster, such as http://HEAD:8265, "
    "and not an address of Ray itself, such as HEAD:6379 or ray://HEAD:10001"
)
_SAME = "submit from an environment with the cluster's versions"


class JobServerClient(JobSubmissionClient):
    """Ray's client with a deadline for every request; it has no setting for one.

    Args:
        address: ``http://host:port``.
        answer_s: Longest wait for an answer.
    """

    def __init__(self, address: str, answer_s: float) -> None:
        self._answer_s = answer_s
        super().__init__(address)

    def _do_request(self, method: str, endpoint: str, **options: Any) -> requests.Response:
        options.setdefault("timeout", (_CONNECT_S, self._answer_s))
        return super()._do_request(method, endpoint, **options)

    def metadata(self) -> Mapping[str, Any]:
        """Return what the cluster says about itself; one that has no such route says nothing."""
        response = self._do_request("GET", _METADATA)
        answer = response.json() if response.status_code == requests.codes.ok else {}
        found = answer.get("data") if isinstance(answer, dict) else None
        return found if isinstance(found, dict) else {}


def connect(address: str, *, answer_s: float) -> JobServerClient:
    """Return a client of the job server at ``address``.

    Raises:
        ClusterError: Nobody answers, it is no job server, it does not take our token, or it runs another Ray or Python.
    """
    with named(address, "cannot be asked"):
        try:
            client = JobServerClient(address, answer_s)
            cluster = client.metadata()
        except (RuntimeError, ValueError, LookupError, TypeError) as error:
            problem = f"what answers there is no job server of Ray: {last_line(error)}"
            raise ClusterError(f"{address}: {problem}; {_REMEDY}") from error
    if client.get_address() != address.rstrip("/"):
        problem = f"Ray would ask {client.get_address()} instead"
        raise ClusterError(f"{address}: {problem}; unset RAY_API_SERVER_ADDRESS and RAY_ADDRESS")
    _check_versions(address, cluster)
    return client


@contextmanager
def named(address: str, what: str, *, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn what goes wrong in the block into one error with the address and a remedy.

    Args:
        address: Whom the block asks.
        what: What it is that goes wrong then.
        passing: What is left as it is.

    Raises:
        ClusterError: Something did.
    """
    try:
        yield
    except passing:
        raise
    except AuthenticationError as error:
        raise ClusterError(_unauthorised(address, error)) from error
    except requests.exceptions.Timeout as error:
        raise ClusterError(f"{address}: {what}: no answer in time; {_REMEDY}") from error
    except LOST_REPLIES as error:
        raise ClusterError(f"{address}: {what}: nothing there answers in HTTP; {_REMEDY}") from error
    except (RuntimeError, ValueError, LookupError, TypeError, OSError) as error:
        raise ClusterError(f"{address}: {what}: {last_line(error)}") from error


def last_line(error: object) -> str:
    """Return what an error says in the end; Ray sends whole tracebacks of its server."""
    lines = [line for line in str(error).splitlines() if line.strip(" .")]
    return lines[-1].strip() if lines else repr(error)


def _unauthorised(address: str, error: AuthenticationError) -> str:
    said = str(error)
    if said.startswith("Authentication failed"):
        return f"{address}: does not take this token; RAY_AUTH_TOKEN_PATH must name a file with the cluster's own"
    if said.startswith("Authentication required"):
        problem = "wants a token, and this command sends none"
    else:
        problem = "needs a token, and Ray found none that can be read"
    return (
        f"{address}: {problem}; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH=FILE, a file with the cluster's token"
    )


def _check_versions(address: str, cluster: Mapping[str, Any]) -> None:
    """Raise where the cluster runs another Ray, or a Python of another series; Ray joins only its own."""
    ours, theirs = ray.__version__, cluster.get("rayVersion", ray.__version__)
    if theirs != ours:
        raise ClusterError(f"{address}: the cluster runs Ray {theirs}, this command Ray {ours}; {_SAME}")
    ours, theirs = platform.python_version(), cluster.get("pythonVersion", platform.python_version())
    if str(theirs).split(".")[:2] != ours.split(".")[:2]:
        raise ClusterError(f"{address}: the cluster runs Python {theirs}, this command Python {ours}; {_SAME}")
