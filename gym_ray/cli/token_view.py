"""How the tokens of a rollout look on a terminal: chains, their calls, and what each stretch of tokens is."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final

from rich.console import Console
from rich.markup import escape

from gym_ray.cli.token_report import RolloutTokens
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.reasons import SEVERAL_CHAINS, SEVERAL_ROOTS, UNRESOLVED_PARENT_CALLS, UNRESOLVED_RETRIES
from gym_ray.token_id_capture.records import ParentResolutionStatus
from gym_ray.token_id_capture.rows import TokenSpan, TrainingRow
from gym_ray.token_id_capture.token_arrays import FloatArray, TokenArray

__all__ = ["print_tokens"]

_KINDS: Final = {"prompt": ("prompt", "blue"), "interstitial": ("tool text", "cyan"), "policy": ("policy", "green")}
_HEAD, _TAIL = 8, 3
_SETTLED_BY_END: Final = frozenset({SEVERAL_CHAINS, SEVERAL_ROOTS, UNRESOLVED_PARENT_CALLS, UNRESOLVED_RETRIES})


def print_tokens(report: RolloutTokens, *, full: bool, console: Console | None = None) -> None:
    """Print verdict, problems, every chain, and the calls that no chain holds.

    Args:
        report: The rollout.
        full: Print every token, and each policy token with its log probability.
        console: Where to; by default standard output.
    """
    console = console or Console(highlight=False)
    _print_verdict(console, report)
    records = {record.model_call_id: record for record in report.records}
    shown: set[str] = set()
    for row in report.rows:
        _print_chain(console, row, records, report.assembled.reasons, full)
        shown.update(span.model_call_id for span in row.spans)
    _print_left_out(console, report, [record for call_id, record in records.items() if call_id not in shown])


def _print_verdict(console: Console, report: RolloutTokens) -> None:
    assembled = report.assembled
    state = "frozen" if report.is_frozen else "open, more calls may come"
    verdict = _masked(assembled.reasons) if assembled.mask_sample else "[green]trainable[/]"
    head = f"[bold]rollout {escape(report.rollout_id)}[/]  calls: {len(report.records)}  {state}  {verdict}"
    console.print(head, soft_wrap=True)
    if assembled.error:
        console.print(f"  [red]error[/] {escape(assembled.error)}", soft_wrap=True)
    if assembled.reasons and _SETTLED_BY_END.issuperset(assembled.reasons):
        console.print("  [dim]the agent's answer may tell which call was the last; --terminal CALL_ID does it here[/]")
    for problem in assembled.problems:
        whose = f" call {problem.model_call_id}" if problem.model_call_id else ""
        console.print(f"  [yellow]problem[/] {escape(f'{problem.reason}{whose} {problem.detail}')}", soft_wrap=True)


def _masked(reasons: Iterable[str]) -> str:
    return f"[red]masked[/] {escape(', '.join(reasons))}"


def _print_chain(
    console: Console, row: TrainingRow, records: Mapping[str, PackedEntry], of_all: Container[str], full: bool
) -> None:
    counts = dict.fromkeys(_KINDS, 0)
    for span in row.spans:
        counts[span.kind] += span.end - span.start
    parts = ", ".join(f"{counts[kind]:,} {label}" for kind, (label, _) in _KINDS.items())
    console.rule(f"[bold]chain {escape(row.chain_id)}[/] {row.token_ids.size:,} tokens: {parts}", align="left")
    own = [reason for reason in row.reasons if reason not in of_all]
    if own:
        console.print(f"  {_masked(own)}", soft_wrap=True)
    if row.shared_with is not None:
        console.print(f"  [dim]its first {row.shared_prefix:,} tokens are those of chain {escape(row.shared_with)}[/]")
    caller = ""
    for span, log_probs in _with_log_probs(row):
        if span.end <= row.shared_prefix:
            continue
        if span.model_call_id != caller:
            caller = span.model_call_id
            _print_call(console, records[caller])
            _print_weights(console, row, caller)
        _print_span(console, span, row.token_ids[span.start : span.end], log_probs, full)


def _with_log_probs(row: TrainingRow) -> Iterator[tuple[TokenSpan, FloatArray]]:
    taken = 0
    for span in row.spans:
        length = span.end - span.start if span.kind == "policy" else 0
        yield span, row.policy_log_probs[taken : taken + length]
        taken += length


def _print_call(console: Console, record: PackedEntry) -> None:
    extras = record.extras
    facts = {
        "model": record.model,
        "ended by": extras.ended_by,
        "prefix": "reused" if record.prefix_supplied else "asked for, not proved" if record.prefix_requested else "",
        "grammar": "bounded the choice" if extras.constrained else "",
        "response": record.response_id or "",
    }
    told = "".join(f"  [dim]{name}[/] {escape(value)}" for name, value in facts.items() if value)
    console.print(f"[bold]call {escape(record.model_call_id)}[/]  {escape(_parent(record))}{told}", soft_wrap=True)


def _parent(record: PackedEntry) -> str:
    status = record.parent_resolution
    if status is ParentResolutionStatus.RESOLVED or (status is None and record.parent_call_id):
        told = f"continues {record.parent_call_id}"
    elif status is ParentResolutionStatus.ROOT:
        told = "begins a conversation"
    else:
        told = "parent not found" if status else "parent not looked for"
    return f"{told} ({record.parent_resolution_reason})" if record.parent_resolution_reason else told


def _print_weights(console: Console, row: TrainingRow, call_id: str) -> None:
    (policy,) = [span for span in row.spans if span.model_call_id == call_id and span.kind == "policy"]
    versions: dict[str, list[str]] = {}
    for span in row.weight_spans:
        if policy.start <= span.start and span.end <= policy.end:
            versions.setdefault(f"{span.start}:{span.end}", []).append(str(span.version))
    for place, told in versions.items():
        console.print(f"  [magenta]weights[/]   {place:>15}          {escape(' or '.join(told))}", soft_wrap=True)


def _print_span(console: Console, span: TokenSpan, ids: TokenArray, log_probs: FloatArray, full: bool) -> None:
    label, colour = _KINDS[span.kind]
    tokens = _pairs(ids, log_probs) if full and log_probs.size else _ids(ids, full)
    line = f"  [{colour}]{label:<9}[/] {f'{span.start}:{span.end}':>15} {ids.size:>7,}  {tokens}"
    if log_probs.size:
        line += f"  [dim]log prob[/] mean {log_probs.mean(dtype='float64'):.4g} min {log_probs.min():.4g}"
    if span.kind == "policy" and not span.loss:
        line += "  [yellow]no loss here[/]"
    console.print(line, soft_wrap=True)


def _ids(ids: TokenArray, full: bool) -> str:
    if full or ids.size <= _HEAD + _TAIL + 1:
        return " ".join(map(str, ids.tolist()))
    return " ".join([*map(str, ids[:_HEAD].tolist()), "…", *map(str, ids[-_TAIL:].tolist())])


def _pairs(ids: TokenArray, log_probs: FloatArray) -> str:
    pairs = zip(ids.tolist(), log_probs.tolist(), strict=True)
    return " ".join(f"{token_id} [dim]({log_prob:.4g})[/]" for token_id, log_prob in pairs)


def _print_left_out(console: Console, report: RolloutTokens, records: Iterable[PackedEntry]) -> None:
    """Print the calls that are in no chain, and why."""
    output = report.assembled.output
    doubts = dict(output.doubts) if output else {}
    aside = set(output.quarantined) if output else set()
    for number, record in enumerate(records):
        if not number:
            console.rule("[bold]in no chain[/]", align="left")
        call_id, generated = record.model_call_id, record.generation_token_ids.size
        if call_id in aside:
            why = "another call with the same prompt counts"
        elif call_id in doubts:
            why = doubts[call_id]
        else:
            why = "it generated nothing" if not generated else "a call before it is in no chain"
        _print_call(console, record)
        stored = "added to its parent" if record.prompt_is_delta else "prompt"
        console.print(
            f"  [yellow]{escape(why)}[/]  {record.prompt_token_ids.size:,} {stored}, {generated:,} policy",
            soft_wrap=True,
        )
