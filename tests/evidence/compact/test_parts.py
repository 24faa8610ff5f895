"""Parts prove themselves; what is damaged is refused by file and line."""

from __future__ import annotations

from typing import Any

import pytest

from gym_ray import exact_json
from gym_ray.errors import DamagedRecordError
from gym_ray.evidence.compact import Parts, merged_parts
from gym_ray.evidence.compact.encoding import PartWriter
from gym_ray.evidence.compact.grammar import name_of
from gym_ray.evidence.compact.parts import PartReader

_TEXT = "some longer text " * 10


def _encoded(*payloads: Any) -> tuple[list[Any], bytes]:
    writer = PartWriter()
    spelled = [writer.payload(payload) for payload in payloads]
    return spelled, writer.content()


def test_every_changed_byte_of_a_part_is_noticed() -> None:
    (spelled,), content = _encoded({"model": _TEXT, "input": [{"content": f"{number} {_TEXT}"} for number in range(6)]})
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 1
        with pytest.raises(DamagedRecordError, match=r"0-0\.parts\.jsonl: part \S{8} is missing"):
            PartReader(Parts.parse(bytes(damaged), "0-0.parts.jsonl")).payload(spelled)


def test_every_cut_but_of_the_last_line_feed_is_noticed() -> None:
    (spelled,), content = _encoded({"input": _TEXT})
    for end in range(len(content) - 1):
        with pytest.raises(DamagedRecordError, match="is missing"):
            PartReader(Parts.parse(content[:end])).payload(spelled)
    assert PartReader(Parts.parse(content[:-1])).payload(spelled) == {"input": _TEXT}


def test_merged_parts_serve_both_records() -> None:
    (one,), first = _encoded({"input": [{"content": _TEXT}]})
    (other,), second = _encoded({"input": [{"content": _TEXT}, {"content": f"more {_TEXT}"}]})
    both = merged_parts(first, b"{damaged\n", second)
    assert both.splitlines() == list(dict.fromkeys([*first.splitlines(), b"{damaged", *second.splitlines()]))
    parts = Parts.parse(both)
    assert PartReader(parts).payload(one) == {"input": [{"content": _TEXT}]}
    assert PartReader(parts).payload(other)["input"][1]["content"] == f"more {_TEXT}"


def test_chains_of_thousands_of_lists_do_not_exhaust_the_stack() -> None:
    history = [{"n": number} for number in range(3000)]
    payloads = [{"input": history[: size + 1]} for size in range(0, 3000, 2)]
    spelled, content = _encoded(*payloads)
    last = PartReader(Parts.parse(content)).payload(spelled[-1])
    assert last == payloads[-1]
    reader = PartReader(Parts.parse(content))
    assert [reader.payload(value) for value in spelled] == payloads


def test_the_reference_and_the_bytes_of_equal_looking_values_differ() -> None:
    payloads = [{"input": [{"a": value, "t": _TEXT}]} for value in (1, 1.0, True, "1", None, 0.0, -0.0)]
    payloads.append({"input": [{"t": _TEXT, "a": 1}]})
    spelled, content = _encoded(*payloads)
    reader = PartReader(Parts.parse(content))
    assert exact_json.dumps([reader.payload(value) for value in spelled]) == exact_json.dumps(payloads)
    assert content.count(_TEXT.encode()) == 1


@pytest.mark.parametrize(
    "value",
    [
        {"$part": 3},
        {"$part": ["x"]},
        {"$part": "unknown"},
        {"$list": 3},
        {"$list": ["unknown"]},
        {"$more": ["unknown", 1, []]},
        {"$more": 3},
        {"$more": [[], 1, []]},
        {"$like": [1]},
        {"$like": ["unknown", {}]},
    ],
)
def test_spellings_that_are_none_are_refused(value: Any) -> None:
    with pytest.raises(DamagedRecordError, match="the file"):
        PartReader(Parts(place="the file")).payload(value)


def test_parts_that_nest_too_deep_are_refused() -> None:
    """No writer of ours makes them; a file that was made by hand does not end the process."""
    lines = [b'"end"']
    for _ in range(1000):
        lines.append(exact_json.dumps([{"$part": name_of(lines[-1])[:8]}]))
    with pytest.raises(DamagedRecordError, match="levels deep"):
        PartReader(Parts(lines)).payload({"$part": name_of(lines[-1])[:8]})


def test_parts_whose_names_begin_alike_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of six bits: many parts meet another one's."""

    def few(content: bytes) -> str:
        return name_of(content)[0] * 8 + name_of(content)[8:]

    monkeypatch.setattr("gym_ray.evidence.compact.encoding.name_of", few)
    monkeypatch.setattr("gym_ray.evidence.compact.parts.name_of", few)
    payload = {"input": [{"content": f"{number} {_TEXT}"} for number in range(20)], "model": _TEXT}
    for held in ((), (_TEXT, f"3 {_TEXT}", f"4 {_TEXT}", f"5 {_TEXT}")):
        writer = PartWriter(held)
        spelled = writer.payload(payload)
        assert b" \n" in writer.content()
        assert PartReader(Parts.parse(writer.content()), held).payload(spelled) == payload
    monkeypatch.setattr("gym_ray.evidence.compact.parts.name_of", lambda _: "A" * 22)
    merged = Parts.parse(merged_parts(b'"one"\n', b'"other"\n'))
    with pytest.raises(DamagedRecordError, match="AAAAAAAA names 2 parts; nobody knows which one is meant"):
        PartReader(merged).payload({"$part": "AAAAAAAA"})
