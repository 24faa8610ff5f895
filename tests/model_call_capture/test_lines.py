from __future__ import annotations

from gym_ray.model_call_capture.lines import CaptureSnapshot, iterate_lines, parse_lines


def test_index_counts_damaged_lines_and_no_blank_ones() -> None:
    data = b'\n{"a":1}\n  \r\n{bad\n[1]\n\xff\n{"a":2}\nnull\n{"a":3'
    exchanges, invalid = parse_lines(data)
    assert exchanges == [(0, {"a": 1}), (4, {"a": 2})]
    assert invalid == 5


def test_only_line_feed_ends_a_line() -> None:
    line = '{"t":"a\u2028b\u2029c\u0085d\\r"}'.encode()
    assert parse_lines(line + b"\n" + line) == (
        [(0, {"t": "a\u2028b\u2029c\u0085d\r"}), (1, {"t": "a\u2028b\u2029c\u0085d\r"})],
        0,
    )


def test_values_orjson_would_lose_survive() -> None:
    data = b'{"n":18446744073709551616}\n{"t":"cut \\ud83d"}\n'
    assert parse_lines(data) == ([(0, {"n": 2**64}), (1, {"t": "cut \ud83d"})], 0)


def test_every_cut_keeps_exactly_the_lines_that_end_before_it() -> None:
    lines = [b'{"i":0}', b'{"i":1,"t":"\xc3\xa9"}', b'{"i":2}']
    data = b"\n".join(lines) + b"\n"
    for cut in range(len(data) + 1):
        exchanges, invalid = parse_lines(data[:cut])
        whole, start = 0, 0
        for line in lines:  # a line is whole once its last byte is there; its line feed adds nothing
            start += len(line)
            whole += start <= cut
            start += 1
        assert [value["i"] for _, value in exchanges] == list(range(whole))
        assert invalid == (1 if data[:cut].rsplit(b"\n", 1)[-1] and len(list(iterate_lines(data[:cut]))) > whole else 0)


def test_snapshot_is_plain_data() -> None:
    assert CaptureSnapshot(None, incomplete=True) == CaptureSnapshot(None, True, None)
