from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.token_id_capture.resolution.token_buffers import TokenPool, TokenRun
from gym_ray.token_id_capture.token_arrays import TokenArray, join_tokens, pack_token_ids


def tokens(*ids: int) -> TokenArray:
    return pack_token_ids(ids)


def same_memory(run: TokenRun, other: TokenRun) -> bool:
    return bool(np.shares_memory(run.view(), other.view()))


def test_a_child_adds_to_its_parents_buffer() -> None:
    pool = TokenPool()
    root = pool.start([tokens(1, 2), tokens(3)])
    child = pool.extend(root, [tokens(4), tokens(5, 6)])
    again = pool.extend(child, [tokens(7)])
    assert again.view().tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert root.view().tolist() == [1, 2, 3]
    assert same_memory(root, again)


def test_a_fork_copies_and_leaves_the_first_child_alone() -> None:
    pool = TokenPool()
    root = pool.start([tokens(1, 2)])
    first = pool.extend(root, [tokens(3)])
    held = first.view()
    fork = pool.extend(root, [tokens(9, 9)])
    assert fork.view().tolist() == [1, 2, 9, 9]
    assert held.tolist() == [1, 2, 3]
    assert not same_memory(first, fork)


def test_nothing_to_add_is_the_same_run() -> None:
    pool = TokenPool()
    root = pool.start([tokens(1)])
    assert pool.extend(root, [tokens()]) is root


def test_views_cannot_be_written() -> None:
    run = TokenPool().start([tokens(1, 2)])
    with pytest.raises(ValueError, match="read-only"):
        run.view()[0] = 5


def test_views_outlive_the_growth_of_their_buffer() -> None:
    pool = TokenPool()
    run = pool.start([tokens(1, 2, 3)])
    held = run.view()
    grown = pool.extend(run, [pack_token_ids(range(10_000))])
    assert held.tolist() == [1, 2, 3]
    assert grown.view(0, 5).tolist() == [1, 2, 3, 0, 1]


def test_neighbouring_parts_join_without_a_copy() -> None:
    run = TokenPool().start([tokens(1, 2, 3), tokens(4, 5)])
    joined = join_tokens([run.view(0, 3), run.view(3)])
    assert joined.tolist() == [1, 2, 3, 4, 5]
    assert np.shares_memory(joined, run.view())


def test_wide_ids_move_the_chain_to_a_wide_buffer() -> None:
    pool = TokenPool()
    narrow = pool.start([tokens(1)])
    wide = pool.extend(narrow, [tokens(2**40)])
    back = pool.extend(wide, [tokens(2)])
    assert (narrow.view().itemsize, back.view().itemsize) == (4, 8)
    assert back.view().tolist() == [1, 2**40, 2]
    assert same_memory(wide, back)


def test_a_long_chain_reserves_little_more_than_its_tokens() -> None:
    pool = TokenPool()
    run = pool.start([pack_token_ids(range(1000))])
    for _ in range(200):
        run = pool.extend(run, [pack_token_ids(range(100))])
    assert run.length == 21_000
    assert run.length <= pool.reserved <= 1.5 * run.length + 256


@given(st.lists(st.tuples(st.integers(0, 50), st.lists(st.integers(0, 2**64 - 1), max_size=40)), max_size=30))
def test_every_run_reads_as_its_parent_and_its_own_tokens(steps: list[tuple[int, list[int]]]) -> None:
    pool = TokenPool()
    runs = [pool.start([tokens(1)])]
    expected = [[1]]
    for parent, added in steps:
        at = parent % len(runs)
        runs.append(pool.extend(runs[at], [pack_token_ids(added)]))
        expected.append(expected[at] + added)
    assert [run.view().tolist() for run in runs] == expected
