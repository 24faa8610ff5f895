"""Gaps are whole, and their names are told apart."""

from __future__ import annotations

from gym_ray.evidence.observations import GAP_CODES, ObservationGap, gap, gaps
from gym_ray.model_call_capture import attachment


def test_a_gap_is_whole() -> None:
    assert gap("c") == {"code": "c", "invocation_id": None, "detail": None}
    assert gap("c", "i", "d") == ObservationGap(code="c", invocation_id="i", detail="d").plain()


def test_every_code_has_one_name() -> None:
    named = {name: value for name, value in vars(gaps).items() if name.isupper() and isinstance(value, str)}
    assert sorted(named.values()) == sorted(GAP_CODES)
    assert set(named) <= set(gaps.__all__)
    of_captures = {value for name, value in vars(attachment).items() if name.isupper() and isinstance(value, str)}
    assert not of_captures & GAP_CODES
