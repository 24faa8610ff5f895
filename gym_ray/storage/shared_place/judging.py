"""Judge what was seen of a place: which mode it allows, and one reason and one remedy for all that stands against it.

Nothing is excused: a change that a node did not see at its first look is late, because what a model server has
acknowledged is read by another node at once.
"""

from __future__ import annotations

from statistics import median
from typing import Literal

from gym_ray.storage.shared_place.evidence import Change, NodeEvidence, PlaceEvidence
from gym_ray.storage.shared_place.pair_findings import pair_findings
from gym_ray.storage.shared_place.report import Mode, PlaceFinding, PlaceReport, Severity

__all__ = ["CaptureWriterKind", "judge"]

CaptureWriterKind = Literal["direct", "hosted"]

_LEAST_BYTES, _LEAST_INODES = 1024**3, 10_000
_SKEW_S = 1.0
_ELSEWHERE = frozenset({"not_there", "not_writable", "differs"})
"""What may be wrong on other nodes when one writer on the first writes for all."""
_VOLATILE = {
    "tmpfs": "it is memory: nothing of it outlives the machine",
    "ramfs": "it is memory: nothing of it outlives the machine",
    "overlay": "it is a container's own layer: nothing of it outlives the container",
}


def judge(evidence: PlaceEvidence, writer: CaptureWriterKind = "direct") -> PlaceReport:
    """Return what the evidence amounts to (D136).

    Args:
        evidence: What the nodes saw.
        writer: Who writes captures: each model server, or one writer on the first node for all.
    """
    findings = [found for number, node in enumerate(evidence.nodes) for found in _of_node(evidence, number, node)]
    findings += pair_findings(evidence)
    errors = [found for found in findings if found.severity is Severity.ERROR]
    first = evidence.nodes[0].name
    spared = [found for found in errors if found.code in _ELSEWHERE and first not in found.nodes[:1]]
    mode = _mode(evidence, errors, spared, writer)
    if mode is Mode.HOSTED and writer == "hosted":
        findings = [_as_warning(found) if found in spared else found for found in findings]
    usable = mode in (Mode.FILES, Mode.SEGMENTS) or (mode is Mode.HOSTED and writer == "hosted")
    findings.sort(key=lambda found: found.severity is not Severity.ERROR)
    return PlaceReport(
        evidence.place,
        evidence.watchers,
        mode,
        usable,
        tuple(findings),
        {node.name: _told(node) for node in evidence.nodes},
        {change.value: _worst(evidence, change) for change in evidence.lags_s if evidence.lags_s[change]},
        _latencies(evidence),
        len(evidence.lags_s.get(Change.IDENTITY, {})) // 2,
    )


def _mode(
    evidence: PlaceEvidence, errors: list[PlaceFinding], spared: list[PlaceFinding], writer: CaptureWriterKind
) -> Mode:
    if len(errors) > len(spared):
        return Mode.UNUSABLE
    if evidence.is_store:
        return Mode.UNUSABLE if errors else Mode.SEGMENTS
    return Mode.HOSTED if spared or writer == "hosted" else Mode.FILES


def _as_warning(found: PlaceFinding) -> PlaceFinding:
    remedy = "nothing: the hosted writer does not need it"
    return PlaceFinding(found.code, Severity.WARNING, found.nodes, found.what, remedy)


def _of_node(evidence: PlaceEvidence, number: int, node: NodeEvidence) -> list[PlaceFinding]:
    if node.lost:
        remedy = "see whether the node is up and its file system answers, then ask again"
        return [_finding("lost", node, f"{node.name}: {node.lost}", remedy)]
    facts, alone = node.facts, node.alone
    mount = f" ({facts.mount})" if facts and facts.mount else ""
    found = []
    if facts is not None and facts.problem:
        found.append(_unable(evidence, number, node, facts.problem + mount, there=facts.there))
    if alone is not None and alone.problem:
        found.append(_unable(evidence, number, node, alone.problem + mount, there=True))
    if alone is not None and alone.locks:
        remedy = "use a file system with advisory locks; on NFS, mount without nolock and local_lock"
        found.append(_finding("locks", node, f"{node.name}: {evidence.place}: {alone.locks}{mount}", remedy))
    return found + _warnings(evidence, node)


def _unable(evidence: PlaceEvidence, number: int, node: NodeEvidence, problem: str, *, there: bool) -> PlaceFinding:
    what = f"{node.name}: {evidence.place}: {problem}"
    if evidence.is_store:
        return _finding("store", node, what, "see the storage options and rights; a store must have conditional puts")
    if number == 0:
        return _finding("first_node", node, what, "give a directory that can be written, with space left")
    code, verb = ("not_writable", "let it be written") if there else ("not_there", "mount it")
    return _finding(code, node, what, f"{verb} on that node, or set model_call_capture_writer: hosted")


def _warnings(evidence: PlaceEvidence, node: NodeEvidence) -> list[PlaceFinding]:
    facts, found = node.facts, []

    def warn(code: str, what: str, remedy: str) -> None:
        found.append(PlaceFinding(code, Severity.WARNING, (node.name,), f"{node.name}: {what}", remedy))

    if facts is not None and facts.free_bytes is not None and facts.free_bytes < _LEAST_BYTES:
        warn("space", f"{evidence.place}: {facts.free_bytes / 2**20:,.0f} MiB are free", "make room")
    if facts is not None and facts.free_inodes is not None and facts.free_inodes < _LEAST_INODES:
        warn("inodes", f"{evidence.place}: room for {facts.free_inodes:,} more files", "make room: a rollout takes one")
    mount = facts.mount if facts is not None else None
    if mount is not None and mount.kind in _VOLATILE:
        warn("volatile", f"{evidence.place}: {_VOLATILE[mount.kind]} ({mount})", "give a directory on a volume")
    if mount is not None and mount.kind.startswith("nfs") and "soft" in mount.options:
        warn("soft", f"{evidence.place}: a slow server makes writes fail ({mount})", "mount with hard")
    if node.skew_s is not None and abs(node.skew_s[0]) - node.skew_s[1] > _SKEW_S:
        ahead = f"its clock is {node.skew_s[0]:+.1f} s from the first node's"
        warn("clock", ahead, "let NTP keep the clocks: times in records and logs of nodes will not fit together")
    return found


def _finding(code: str, node: NodeEvidence, what: str, remedy: str) -> PlaceFinding:
    return PlaceFinding(code, Severity.ERROR, (node.name,), what, remedy)


def _told(node: NodeEvidence) -> str:
    facts = node.facts
    if facts is None:
        return node.lost or "not asked"
    told = [str(facts.mount)] if facts.mount else []
    if facts.free_bytes is not None:
        told.append(f"{facts.free_bytes / 2**30:,.1f} GiB free")
    if facts.free_inodes is not None:
        told.append(f"room for {facts.free_inodes:,} files")
    if node.skew_s is not None:
        told.append(f"clock {node.skew_s[0] * 1000:+.0f} ms (within {node.skew_s[1] * 1000:.0f} ms)")
    return "; ".join(told)


def _worst(evidence: PlaceEvidence, change: Change) -> float | None:
    worst = 0.0
    for (reader, writer), lag in evidence.lags_s[change].items():
        if change is Change.IDENTITY and not evidence.same(reader, writer):
            continue
        if lag is None:
            return None
        worst = max(worst, lag)
    return worst


def _latencies(evidence: PlaceEvidence) -> dict[str, tuple[float, float]]:
    times: dict[str, list[float]] = {}
    for node in evidence.nodes:
        for what, took in (node.alone.latencies_s if node.alone else {}).items():
            times.setdefault(what, []).extend(took)
    return {what: (median(took), max(took)) for what, took in times.items()}
