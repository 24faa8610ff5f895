"""Where work on a body is done."""

from __future__ import annotations

import threading

import pytest

from gym_ray.model_server.off_loop import off_loop


@pytest.mark.parametrize(("size", "here"), [(0, True), (128 * 1024, True), (128 * 1024 + 1, False)])
async def test_work_on_a_large_body_leaves_the_loop(size: int, here: bool) -> None:
    assert (await off_loop(size, threading.get_ident) == threading.get_ident()) is here


@pytest.mark.parametrize("size", [0, 1_000_000])
async def test_what_the_work_raises_arrives(size: int) -> None:
    with pytest.raises(ZeroDivisionError):
        await off_loop(size, lambda: 1 // 0)
