"""Which headers pass, by example; the ways through a running server are tested with the upstream."""

from __future__ import annotations

from gym_ray.model_server.headers import answer_headers, request_headers


def test_credentials_and_hop_by_hop_headers_stay_behind() -> None:
    sent = [
        ("Host", "h"),
        ("Authorization", "Bearer k"),
        ("X-Api-Key", "k"),
        ("Cookie", "k"),
        ("Accept-Encoding", "gzip"),
        ("Content-Length", "3"),
        ("Transfer-Encoding", "chunked"),
        ("Connection", "close, X-Private"),
        ("X-Private", "k"),
        ("Accept", "a"),
        ("Accept", "b"),
        ("X-Session-Id", "s"),
    ]
    assert request_headers(sent) == {"accept": "a, b", "x-session-id": "s"}


def test_an_engines_headers_keep_their_order_and_repetition() -> None:
    given = [
        ("Date", "now"),
        ("Content-Type", "application/json"),
        ("X-Limit", "1"),
        ("X-Limit", "2"),
        ("Set-Cookie", "k"),
        ("Connection", "X-Hop"),
        ("X-Hop", "1"),
        ("Content-Length", "7"),
    ]
    kept = [("content-type", "application/json"), ("x-limit", "1"), ("x-limit", "2"), ("content-length", "7")]
    assert answer_headers(given) == kept


def test_a_decoded_body_has_neither_coding_nor_length() -> None:
    given = [("content-encoding", "gzip"), ("content-length", "7"), ("x-id", "1")]
    assert answer_headers(given) == given
    assert answer_headers(given, decoded=True) == [("x-id", "1")]
