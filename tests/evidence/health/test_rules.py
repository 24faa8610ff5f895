from __future__ import annotations

import pytest

from gym_ray.evidence.health import CHECKS, SEVERITIES, unknown_checks


@pytest.mark.parametrize("check", ["failed", "mismatch", "unreadable", "duplicate"])
def test_what_speaks_against_the_evidence_is_an_error(check: str) -> None:
    """D170: a gate in CI may rest on these."""
    named = [name for name in CHECKS if check in name]
    assert named
    assert {SEVERITIES[name] for name in named} == {"error"}


@pytest.mark.parametrize("check", ["zero_completion", "missing_token_counts", "runaway", "hollow"])
def test_what_may_be_the_models_fault_is_a_warning(check: str) -> None:
    (named,) = (name for name in CHECKS if check in name)
    assert SEVERITIES[named] == "warning"


def test_every_check_has_a_severity_and_others_are_unknown() -> None:
    assert len(CHECKS) == len(set(CHECKS)) == 14
    assert unknown_checks([*CHECKS, "zzz", "mistyped"]) == ["mistyped", "zzz"]
