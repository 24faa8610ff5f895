"""Media lie where their tokens lie, also once a captured prefix replaces the rendered one."""

from __future__ import annotations

from typing import Any

import pytest

from gym_ray.token_id_capture.adapters import place_media_spans


def span(offset: int, length: int = 4, **more: Any) -> dict[str, Any]:
    return {"offset": offset, "length": length, **more}


def placed(chain: list[Any], rendered: list[Any]) -> list[dict[str, Any]]:
    """A rendered prompt whose first 30 tokens are 33 in the captured prefix."""
    return place_media_spans(chain, rendered, prefix_len=33, rendered_prefix_len=30)


def test_old_media_lie_where_they_were_captured_and_new_ones_move_with_their_tokens() -> None:
    chain = [[span(3, hash="a")], None, [span(20, 6, hash="b")]]
    rendered = [span(2, hash="a"), span(18, 6, hash="b"), span(30, hash="c"), span(40, 9, hash="d")]
    assert placed(chain, rendered) == [
        span(3, hash="a"),
        span(20, 6, hash="b"),
        span(33, hash="c"),
        span(43, 9, hash="d"),
    ]
    assert rendered[3] == span(40, 9, hash="d")


def test_calls_may_repeat_the_media_of_their_ancestors() -> None:
    assert placed([[span(3)], [span(3), span(20)]], [span(1), span(9)]) == [span(3), span(20)]


def test_without_media_there_is_nothing_to_place() -> None:
    assert placed([None, []], []) == []
    assert placed([], [span(31)]) == [span(34)]


@pytest.mark.parametrize(
    ("chain", "rendered", "why"),
    [
        ([[span(3)]], [], "the chain holds 1 media spans, the rendered prompt 0"),
        ([], [span(3)], "the chain holds 0 media spans, the rendered prompt 1"),
        ([[span(3, 4)]], [span(3, 5)], "medium 0 of the chain"),
        ([[span(3, hash="a")]], [span(3, hash="b")], "medium 0 of the chain"),
        ([[span(3)], [span(3, 5)]], [span(3)], "where an ancestor has"),
        ([[span(3)], [span(5)]], [span(3), span(8)], "the chain: media spans .* overlap"),
        ([[span(3), span(5)]], [span(3)], "call 0 of the chain: media spans .* overlap"),
        ([[span(30)]], [span(3)], "ends behind its prefix of 33 tokens"),
        ([], [span(28)], "crosses the end of the replaced prefix at token 30"),
        ([], [span(40), span(42)], "rendered: media spans .* overlap"),
        ([[{"offset": 3}]], [span(3)], "call 0 of the chain: media span 0 needs"),
        ([], [span(31), span(-1)], "rendered: media span 1 needs"),
        ([], [span(31, 0)], "needs an offset"),
        ([], [span(True)], "needs an offset"),
    ],
)
def test_media_that_do_not_agree_are_refused(chain: list[Any], rendered: list[Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        placed(chain, rendered)
