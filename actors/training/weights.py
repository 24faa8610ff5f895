"""Say which weights are served, one thread at a time: to the host of steps and to every model server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from gym_ray.rollouts.training.weight_versions import Spoken, VersionOrder, say_version

__all__ = ["SaidWeights"]


class SaidWeights:
    """The weights of a loop. A slow thread never says an older version after a newer one: rows would be stamped wrong.

    Args:
        order: What was said, and what may be said next.
        ask: Calls a method of the host of steps.
        urls: Returns the root URL of every model server by what messages call it.
        run_token: What the servers ask for.
    """

    def __init__(
        self, order: VersionOrder, ask: Callable[..., Any], urls: Callable[[], Mapping[str, str]], run_token: str | None
    ) -> None:
        self._order, self._ask, self._urls, self._run_token = order, ask, urls, run_token
        self._lock = threading.Lock()

    @property
    def last(self) -> Spoken | None:
        """What was said last, None before that."""
        return self._order.last

    def advance(self, version: int, *, new_epoch: bool) -> None:
        """Say the next version.

        Raises:
            SettingsError: It is no whole number, or goes back without ``new_epoch``.
            ClusterError: A server refused or did not answer; say it again.
        """
        with self._lock:
            self._say(self._order.advance(version, new_epoch=new_epoch))

    def repeat(self) -> Spoken | None:
        """Say the last version once more, for whoever forgot it; return it.

        Raises:
            ClusterError: A server refused or did not answer.
        """
        with self._lock:
            if self.last is not None:
                self._say(self.last)
            return self.last

    def _say(self, spoken: Spoken) -> None:
        self._ask("set_version", spoken.version)  # first: a server that starts from now on asks the host for it
        say_version(self._urls(), spoken.version, self._run_token)
        self._ask("set_epoch", spoken.epoch)  # last: what begins before it may meet both epochs
