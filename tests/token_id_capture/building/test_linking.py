from __future__ import annotations

from gym_ray.testing.token_rollouts import TokenRollout
from gym_ray.token_id_capture.builder import BuildOutput, run_builder


def paths(out: BuildOutput) -> list[list[str]]:
    return [[link.model_call_id for link in chain.links] for chain in out.chains]


def with_empty_call(*, deltas: bool = True) -> TokenRollout:
    rollout = TokenRollout(deltas=deltas)
    rollout.call("c1", [1, 2, 3], [10, 11])
    rollout.call("e2", [4], [], "c1")
    rollout.call("c3", [5], [12], "e2")
    return rollout


def test_a_link_passes_through_calls_that_generated_nothing() -> None:
    for deltas in (True, False):
        rollout = with_empty_call(deltas=deltas)
        rollout.call("e4", [], [], "c3")
        rollout.call("e5", [6], [], "e4")
        rollout.call("c6", [7], [13], "e5")
        out = run_builder(rollout.packed()[::-1])
        assert paths(out) == [["c1", "c3", "c6"]]
        assert [link.interstitial for link in out.chains[0].links] == [[], [4, 5], [6, 7]]
        assert out.notes.parent_link_failures == {"parent_call_id_missing_recovered": 2}
        assert out.doubts == {}


def test_every_branch_behind_calls_that_generated_nothing_is_linked() -> None:
    rollout = with_empty_call()
    rollout.call("e4", [6], [], "e2")
    for call_id, token in (("m1", 7), ("m2", 8), ("m3", 9)):
        rollout.call(call_id, [token], [13], "e4" if call_id != "m3" else "e2")
    out = run_builder(rollout.packed())
    assert paths(out) == [["c1", "c3"], ["c1", "m3"], ["c1", "m1"], ["c1", "m2"]]
    assert out.doubts == {}


def test_a_lost_call_is_not_taken_for_tool_text() -> None:
    """What it generated would be in the row as if a tool had said it, and nobody would know."""
    rollout = TokenRollout(deltas=False)
    rollout.call("c1", [1, 2, 3], [10, 11])
    rollout.call("lost", [4, 5], [12], "c1")
    rollout.call("m", [6], [7], "lost")
    del rollout.records["lost"]
    out = run_builder(rollout.packed(), terminal_call_id="m")
    assert paths(out) == [["c1"], ["m"]]
    assert (out.doubts, out.notes.terminal_chain) == ({"m": "parent_call_id_missing"}, "broken")


def test_a_call_behind_a_broken_delta_is_not_linked_past_it() -> None:
    """W27: the broken call's tokens would be delivered as tool text on the way to the named end."""
    rollout = TokenRollout()
    rollout.call("c1", [1, 2, 3], [10, 11])
    rollout.call("broken", [4], [12], "c1", digest="0" * 64)
    rollout.call("m", [5], [13], "broken", delta=False)
    out = run_builder(rollout.packed(), terminal_call_id="m")
    assert paths(out) == [["c1"], ["m"]]
    assert out.doubts == {"broken": "delta_chain_unreconstructable", "m": "parent_call_id_missing"}
    assert out.notes.terminal_chain == "broken"


def test_a_call_that_generated_nothing_hides_no_lost_call_before_it() -> None:
    rollout = TokenRollout(deltas=False)
    rollout.call("c1", [1, 2, 3], [10, 11])
    rollout.call("lost", [4], [12], "c1")
    rollout.call("e2", [5], [], "lost")
    rollout.call("c3", [6], [13], "e2")
    del rollout.records["lost"]
    out = run_builder(rollout.packed())
    assert paths(out) == [["c1"], ["c3"]]
    assert out.doubts == {"c3": "parent_call_id_missing"}


def test_a_call_that_generated_nothing_must_itself_be_linked_by_a_decision() -> None:
    for status in ("unresolved", "root", None):
        rollout = with_empty_call(deltas=False)
        rollout.records["e2"].update(parent_resolution=status, parent_call_id=None)
        assert run_builder(rollout.packed()).doubts == {"c3": "parent_call_id_missing"}


def test_calls_that_generated_nothing_in_a_circle_lead_nowhere() -> None:
    rollout = with_empty_call(deltas=False)
    rollout.records["e2"]["parent_call_id"] = "e2b"
    rollout.records["e2b"] = {**rollout.records["e2"], "model_call_id": "e2b", "parent_call_id": "e2"}
    rollout.records["c4"] = {**rollout.records["c3"], "model_call_id": "c4", "parent_call_id": "e2b"}
    out = run_builder(rollout.packed())
    assert out.doubts == {"c3": "parent_call_id_missing", "c4": "parent_call_id_missing"}


def test_a_prompt_that_does_not_hold_the_empty_call_is_no_continuation() -> None:
    rollout = with_empty_call(deltas=False)
    other = TokenRollout(deltas=False)
    other.call("c3", [1, 2, 3, 10, 11, 8, 5], [12])
    other.records["c3"].update(parent_resolution="resolved", parent_call_id="e2")
    out = run_builder([*rollout.packed()[:2], *other.packed()])
    assert out.doubts == {"c3": "parent_call_id_missing"}


def test_a_prompt_written_anew_is_compared_with_the_tokens_of_its_parent() -> None:
    for deltas in (True, False):
        rollout = TokenRollout(deltas=deltas)
        rollout.call("c1", [1, 2, 3], [10, 11])
        rollout.call("c2", [4], [12], "c1")
        same = rollout.call("same", [5], [13], "c2", delta=False)
        out = run_builder(rollout.packed())
        assert paths(out) == [["c1", "c2", "same"]]
        same["prompt_token_ids"][3] = 99  # the parent's generation, tokenised anew
        same["digest"] = None
        out = run_builder(rollout.packed())
        assert out.doubts == {"same": "parent_digest_mismatch"}
        assert paths(out) == [["c1", "c2"], ["same"]]


def test_a_writer_that_makes_no_decision_is_believed_where_it_names_a_parent() -> None:
    rollout = TokenRollout(deltas=False)
    rollout.call("c1", [1], [2])
    rollout.call("c2", [3], [4], "c1", parent_resolution=None)
    rollout.call("c3", [5], [6], parent_resolution=None)
    out = run_builder(rollout.packed())
    assert paths(out) == [["c3"], ["c1", "c2"]] or paths(out) == [["c1", "c2"], ["c3"]]
    assert out.doubts == {"c3": "missing_resolution"}


def test_a_call_is_not_its_own_parent() -> None:
    rollout = TokenRollout(deltas=False)
    rollout.call("c1", [1], [2], parent_resolution="resolved", parent_call_id="c1")
    assert run_builder(rollout.packed()).doubts == {"c1": "parent_call_id_missing"}
