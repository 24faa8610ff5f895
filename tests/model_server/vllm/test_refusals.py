"""Refusals without the token ids that they repeat."""

from __future__ import annotations

import pytest

from gym_ray.model_server.vllm.refusals import without_ids


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            b"{'required_prefix_token_ids': [1, 2, 3, 4], 'x': [0, 1]}",
            b"{'required_prefix_token_ids': [], 'x': [0, 1]}",
        ),
        (b'{"detail":[{"input":[1,2,3,4]}]}', b'{"detail":[{"input":[]}]}'),
        (b"cut [1, 2, 3, 4, 5", b"cut []"),
        (b"cut [1, 2, 3, 4,", b"cut []"),
        (b"[1, 2, 3, 4, ...] and [\n5,\n6,\n7,\n8\n]", b"[] and []"),
        (
            b"{'token_id': 5, 'logprob': -0.5}, {'token_id': 6",
            b"{'token_id': null, 'logprob': -0.5}, {'token_id': null",
        ),
        (b'{"token_id":5,"rank":1}', b'{"token_id":null,"rank":1}'),
        (rb"{\"token_id\": 5}", rb"{\"token_id\": null}"),
        (b"one of [1, 2, 3]", b"one of [1, 2, 3]"),
        (b"[1, 2, 3, 4 and more than a few words]", b"[1, 2, 3, 4 and more than a few words]"),
        (b"", b""),
    ],
)
def test_ids_are_taken_out(text: bytes, shown: bytes) -> None:
    assert without_ids(text) == shown
