"""Examine a place from several nodes: tell each what to do, in rounds, and write down what they saw.

Every pair of nodes is compared in every round, which costs as many steps as there are nodes. A node that fails or does
not answer takes no further part, and the others go on. Whatever happens, the nodes are told to take everything away.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any

from gym_ray.storage.shared_place.evidence import (
    DIRECTORY_CHANGES,
    STORE_CHANGES,
    Change,
    NodeEvidence,
    PlaceEvidence,
)
from gym_ray.storage.shared_place.hands import ProbeNode

__all__ = ["OnWait", "examine"]

OnWait = Callable[[], None]
_MOMENT_S = 0.25
_RACES = tuple(str(number) for number in range(8))
_CLOCK_ROUNDS = 3
_SWEEP_S = 10.0


def examine(
    place: str,
    nodes: Sequence[ProbeNode],
    *,
    is_store: bool,
    watchers: str,
    patience_s: float = 5.0,
    step_timeout_s: float = 30.0,
    on_wait: OnWait | None = None,
) -> PlaceEvidence:
    """Return what the nodes saw; nothing of it is left at the place.

    Args:
        place: Where, for messages.
        nodes: The node of whoever asks first.
        is_store: Whether the place is an object store.
        watchers: What the nodes are, for messages.
        patience_s: How long a node looks for a change of another.
        step_timeout_s: A node that has not answered then, beyond its patience, is given up.
        on_wait: Called every moment; it may raise to give up, and everything is taken away all the same.
    """
    evidence = PlaceEvidence(place, is_store, watchers, [NodeEvidence(node.name) for node in nodes], patience_s)
    examination = _Examination(nodes, evidence, step_timeout_s, on_wait or (lambda: None))
    try:
        examination.run()
    finally:
        examination.take_away()
    return evidence


class _Examination:
    def __init__(
        self, nodes: Sequence[ProbeNode], evidence: PlaceEvidence, step_timeout_s: float, on_wait: OnWait
    ) -> None:
        self._nodes, self._evidence, self._timeout_s, self._on_wait = nodes, evidence, step_timeout_s, on_wait

    def run(self) -> None:
        self._meet()
        if len(self._able()) > 1:
            self._compare()

    def _meet(self) -> None:
        """Let every node look at the place and work there by itself, the first one first: it may create the place."""
        everyone = list(range(len(self._nodes)))
        for numbers, create in ((everyone[:1], True), (everyone[1:], False)):
            for node, facts in self._round(numbers, "begin", create).items():
                self._evidence.nodes[node].facts = facts
        self._read_clocks()
        ready = [node for node in self._living() if (facts := self._evidence.nodes[node].facts) and not facts.problem]
        for node, alone in self._round(ready, "work_alone").items():
            self._evidence.nodes[node].alone = alone

    def _read_clocks(self) -> None:
        """Compare each clock with the first node's: the answer that came fastest tells most exactly."""
        offsets: dict[int, tuple[float, float]] = {}
        for node in self._living():
            for _ in range(_CLOCK_ROUNDS):
                before = time.time()
                answer = self._round([node], "clock")
                after = time.time()
                if node in answer:
                    found = (answer[node] - (before + after) / 2, (after - before) / 2)
                    offsets[node] = min(offsets.get(node, found), found, key=lambda pair: pair[1])
        if 0 not in offsets:
            return
        first, inexact = offsets[0]
        for node, (offset, half) in offsets.items():
            self._evidence.nodes[node].skew_s = (offset - first, half + inexact) if node else (0.0, 0.0)

    def _compare(self) -> None:
        changes = STORE_CHANGES if self._evidence.is_store else DIRECTORY_CHANGES
        self._round(self._able(), "prepare", [])
        for change in (Change.IDENTITY, *changes):
            self._compare_change(change)
        if not self._evidence.is_store:
            self._compare_locks()
        self._race()

    def _compare_change(self, change: Change) -> None:
        looks = {node: self._start(node, "look", self._peers(node, change), change) for node in self._able()}
        self._answers(looks, "look", self._timeout_s)
        changed = self._round(self._able(), "change", change)
        patience_s = self._evidence.patience_s
        peers = {node: [other for other in self._peers(node, change) if other in changed] for node in self._able()}
        futures = {node: self._start(node, "watch_visibility", change, peers[node], patience_s) for node in peers}
        seen = self._answers(futures, "watch_visibility", self._timeout_s + patience_s)
        lags = {(reader, writer): lag for reader, answer in seen.items() for writer, lag in answer.items()}
        self._evidence.lags_s[change] = lags

    def _peers(self, node: int, change: Change) -> list[int]:
        others = [other for other in self._able() if other != node]
        if change is Change.IDENTITY:
            return others
        return [other for other in others if self._evidence.same(node, other)]

    def _compare_locks(self) -> None:
        held = self._round(self._able(), "hold_lock")
        for node, problem in held.items():
            if problem:
                self._evidence.locks[node, node] = problem
        for told, free in ((self._evidence.locks, False), (self._evidence.releases, True)):
            for node, answer in self._each("try_locks", free).items():
                told.update({(node, other): what for other, what in answer.items() if not held.get(other, "gone")})
            if not free:
                self._round(self._able(), "release_lock")

    def _race(self) -> None:
        """Let all nodes reach for the same names at the same time; those that see one place as the first one does."""
        runners = [node for node in self._able() if self._evidence.same(node, 0)]
        for node, got in self._round(runners, "race", _RACES).items():
            for way, names in got.items():
                winners = self._evidence.races.setdefault(way, {name: [] for name in _RACES})
                for name in names:
                    winners[name].append(node)

    def take_away(self) -> None:
        """Tell every node, also those that were given up, to take everything away; wait for them a while."""
        for step in ("sweep", "finish"):
            everyone = range(len(self._nodes))
            futures = {node: self._start(node, step) for node in everyone}
            wait(futures.values(), timeout=_SWEEP_S)
            for node, future in futures.items():
                failed = not future.done() or future.cancelled() or future.exception() is not None
                if failed and not self._evidence.nodes[node].lost:
                    why = "no answer" if not future.done() else repr(future.exception())
                    self._evidence.nodes[node].lost = f"it did not take its files away: {why}"

    def _living(self) -> list[int]:
        return [number for number, node in enumerate(self._evidence.nodes) if not node.lost]

    def _able(self) -> list[int]:
        return [number for number in self._living() if self._evidence.nodes[number].works_alone]

    def _each(self, step: str, *arguments: Any) -> dict[int, Any]:
        """Let every node take a step about those that see the same place."""
        futures = {node: self._start(node, step, self._peers(node, Change.LIST), *arguments) for node in self._able()}
        return self._answers(futures, step, self._timeout_s)

    def _round(self, numbers: Sequence[int], step: str, *arguments: Any) -> dict[int, Any]:
        """Let nodes take a step at the same time; return the answers of those that gave one."""
        return self._answers({node: self._start(node, step, *arguments) for node in numbers}, step, self._timeout_s)

    def _start(self, node: int, step: str, *arguments: Any) -> Future[Any]:
        try:
            return self._nodes[node].start(step, *arguments)
        except Exception as error:  # noqa: BLE001 - boundary: a node is lost in whatever way its transport has
            failed: Future[Any] = Future()
            failed.set_exception(error)
            return failed

    def _answers(self, futures: dict[int, Future[Any]], step: str, timeout_s: float) -> dict[int, Any]:
        until = time.monotonic() + timeout_s
        pending = set(futures.values())
        while pending and time.monotonic() < until:
            _, pending = wait(pending, timeout=_MOMENT_S)
            self._on_wait()
        answers = {}
        for node, future in futures.items():
            if not future.done():
                self._evidence.nodes[node].lost = f"no answer to {step!r} after {timeout_s:g} s"
                continue
            error = future.exception()
            if error is None:
                answers[node] = future.result()
            else:
                self._evidence.nodes[node].lost = f"{step!r} failed: {str(error) or type(error).__name__}"
        return answers
