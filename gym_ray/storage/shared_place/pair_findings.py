"""What stands against a place because two nodes do not see the same there."""

from __future__ import annotations

from collections.abc import Iterable

from gym_ray.storage.shared_place.evidence import Change, Pair, PlaceEvidence
from gym_ray.storage.shared_place.report import PlaceFinding, Severity

__all__ = ["pair_findings"]

_SHOWN = 3
_LATE = {
    Change.IDENTITY: "new files",
    Change.APPEND: "what was appended to a file",
    Change.NEW: "a new name",
    Change.TRUNCATE: "that a file was cut",
    Change.REPLACE: "that a value was replaced",
    Change.LIST: "a new name in a listing",
    Change.REMOVE: "that a name is gone",
}
_NAMES = (Change.NEW, Change.LIST, Change.REMOVE)


def pair_findings(evidence: PlaceEvidence) -> list[PlaceFinding]:
    """Return one finding for each thing that is wrong, naming nodes; pairs are those that were compared."""
    return [*_differing(evidence), *_late(evidence), *_locks(evidence), *_races(evidence)]


def _differing(evidence: PlaceEvidence) -> Iterable[PlaceFinding]:
    """Name each node that does not see what the first one of its like sees, with the group that it does belong to."""
    compared = evidence.lags_s.get(Change.IDENTITY, {})
    names = [node.name for node in evidence.nodes]
    apart: dict[int, list[int]] = {}
    for reader, writer in compared:
        if reader > writer and (writer, reader) in compared and not evidence.same(reader, writer):
            apart.setdefault(reader, []).append(writer)
    for node, others in apart.items():
        who = _some([names[other] for other in others])
        what = (
            f"{names[node]}: {evidence.place} is another directory there than on {who}: "
            f"neither's files were seen by both within {evidence.patience_s:g} s{_mounts(evidence, node, others[0])}"
        )
        if evidence.is_store:
            what = f"{names[node]}: {evidence.place} is another store there than on {who}"
            remedy = "use one store that all nodes reach, with the same options on each"
            yield PlaceFinding("differs", Severity.ERROR, (names[node],), what, remedy)
            continue
        remedy = "mount the same directory at that path on every node, or set model_call_capture_writer: hosted"
        yield PlaceFinding("differs", Severity.ERROR, (names[node],), what, remedy)


def _mounts(evidence: PlaceEvidence, one: int, other: int) -> str:
    told = [facts.mount for number in (one, other) if (facts := evidence.nodes[number].facts) and facts.mount]
    return f" (there {told[0]}; else {told[1]})" if len(told) == 2 and told[0] != told[1] else ""


def _late(evidence: PlaceEvidence) -> Iterable[PlaceFinding]:
    for change, lags in evidence.lags_s.items():
        late = {
            pair: lag
            for pair, lag in lags.items()
            if lag != 0.0 and (change is not Change.IDENTITY or evidence.same(*pair))
        }
        if not late:
            continue
        reader, writer = max(late, key=lambda pair: float("inf") if (lag := late[pair]) is None else lag)
        lag, names = late[reader, writer], [node.name for node in evidence.nodes]
        after = f"only after {lag:.2f} s" if lag is not None else f"not within {evidence.patience_s:g} s"
        more = f" ({len(late)} pairs of {len(lags)})" if len(late) > 1 else ""
        what = f"{evidence.place}: {names[reader]} saw {_LATE[change]} by {names[writer]} {after}{more}"
        readers = tuple(dict.fromkeys(names[pair[0]] for pair in late))
        yield PlaceFinding("late", Severity.ERROR, readers, what, _late_remedy(evidence, change))


def _late_remedy(evidence: PlaceEvidence, change: Change) -> str:
    if evidence.is_store:
        return "use a store that is strongly consistent, without a caching proxy before it"
    option = "lookupcache=none" if change in _NAMES else "actimeo=0 (or noac)"
    return f"turn the cache of attributes off; on NFS, mount with {option}"


def _locks(evidence: PlaceEvidence) -> Iterable[PlaceFinding]:
    """Say once for each kind of problem which pair showed it."""
    found: dict[str, list[Pair]] = {}
    for told in (evidence.locks, evidence.releases):
        for pair, problem in told.items():
            if problem:
                found.setdefault(problem, []).append(pair)
    names = [node.name for node in evidence.nodes]
    for problem, pairs in found.items():
        tried, held = pairs[0]
        who = f"{names[tried]} and {names[held]}" if tried != held else names[tried]
        more = f" ({len(pairs)} such pairs)" if len(pairs) > 1 else ""
        nodes = tuple(dict.fromkeys(names[number] for pair in pairs for number in pair))
        remedy = "mount with locks that reach the server: on NFS, without nolock and local_lock; on Lustre, with flock"
        yield PlaceFinding("locks", Severity.ERROR, nodes, f"{who}: {evidence.place}: {problem}{more}", remedy)


def _races(evidence: PlaceEvidence) -> Iterable[PlaceFinding]:
    for way, winners in evidence.races.items():
        wrong = {name: nodes for name, nodes in winners.items() if len(nodes) != 1}
        if not wrong:
            continue
        nodes = tuple(dict.fromkeys(evidence.nodes[number].name for numbers in wrong.values() for number in numbers))
        counts = ", ".join(sorted({str(len(numbers)) for numbers in wrong.values()}))
        what = (
            f"{evidence.place}: of the nodes that made one name at the same time, {counts} believe to have got it "
            f"({way}, {len(wrong)} of {len(winners)} names)"
        )
        remedy = "use a file system, or a store, that gives a name to one maker only"
        yield PlaceFinding("race", Severity.ERROR, nodes, what, remedy)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
