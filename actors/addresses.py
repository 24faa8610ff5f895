"""Addresses of Ray clusters: what can be known of one before Ray asks it, which it would do for many minutes."""

from __future__ import annotations

import socket

from gym_ray.errors import ClusterError

__all__ = ["check_listening"]

_ANSWER_S = 10.0
_REMEDY = "give the address of the head of a running cluster, such as HEAD:6379, or unset RAY_ADDRESS"


def check_listening(address: str) -> None:
    """Return when somebody listens at an address of the form ``HOST:PORT``; other forms are left to Ray.

    Raises:
        ClusterError: Nobody does.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return  # a word such as auto, or an address that Ray refuses by itself
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(f"cannot join Ray at {address!r}: {error}; {_REMEDY}") from error
