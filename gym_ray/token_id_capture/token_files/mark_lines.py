"""``<rollout>.tokens.incomplete``: one line a mark, the call's id or, where there is more to say, a JSON object.

The existence of the file marks its rollout, whatever is in it: a line that was cut short must not lose the mark.
"""

from __future__ import annotations

from typing import Final

from gym_ray import exact_json
from gym_ray.token_id_capture.protocols import CaptureProblem
from gym_ray.token_id_capture.reasons import MARKED_INCOMPLETE

__all__ = ["encode_mark", "parse_marks"]

_DETAILED: Final = b"{"


def encode_mark(mark: CaptureProblem) -> bytes:
    """Return a mark as a line with its line feed."""
    line = mark.model_call_id.encode("utf-8", "surrogatepass")
    says_more = mark.reason != MARKED_INCOMPLETE or mark.detail
    if not says_more and mark.model_call_id.isprintable() and not line.startswith(_DETAILED):
        return line + b"\n"
    members = {"detail": mark.detail, "model_call_id": mark.model_call_id, "reason": mark.reason}
    return exact_json.dumps(members, as_line=True)


def parse_marks(data: bytes) -> list[CaptureProblem]:
    """Return the marks of a file, each once; an empty file holds one mark that names nothing."""
    marks = dict.fromkeys(_parse_mark(line) for line in data.split(b"\n") if line)
    return list(marks) or [CaptureProblem(MARKED_INCOMPLETE)]


def _parse_mark(line: bytes) -> CaptureProblem:
    members = exact_json.loads_object(line) if line.startswith(_DETAILED) else None
    if members is None:
        return CaptureProblem(MARKED_INCOMPLETE, line.decode("utf-8", "backslashreplace"))
    reason, call_id, detail = (str(members.get(name, "")) for name in ("reason", "model_call_id", "detail"))
    return CaptureProblem(reason or MARKED_INCOMPLETE, call_id, detail)
