"""Parts prove themselves; what is damaged is refused by file and line."""

from __future__ import annotations

from typing import Any

import pytest

from gym_ray import exact_json
from gym_ray.errors import DamagedRecordError
from gym_ray.evidence.compact import Parts, merged_parts
from gym_ray.evidence.compact.encoding import PartWriter
from gym_ray.evidence.compact.parts import PartReader

_TEXT = "some longer text " * 10


def _encoded(*payloads: Any) -> tuple[list[Any], bytes]:
    writer = PartWriter()
    spelled = [writer.payload(payload) for payload in payloads]
    return spelled, writer.content()


def test_every_changed_byte_of_a_part_is_noticed() -> None:
    _, content = _encoded({"input": [{"content": _TEXT}]})
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 1
        with pytest.raises(DamagedRecordError, match=r"0-0\.parts\.jsonl, line \d"):
            Parts.parse(bytes(damaged), "0-0.parts.jsonl")


def test_a_torn_last_line_is_refused() -> None:
    _, content = _encoded({"input": _TEXT})
    for end in range(1, len(content) - 1):
        if content[end - 1 : end] != b"\n":
            with pytest.raises(DamagedRecordError, match="line"):
                Parts.parse(content[:end])


def test_merged_parts_serve_both_records() -> None:
    (one,), first = _encoded({"input": [{"content": _TEXT}]})
    (other,), second = _encoded({"input": [{"content": _TEXT}, {"content": f"more {_TEXT}"}]})
    both = merged_parts(first, b'{"damaged": 1}\n', second)
    assert len(both.splitlines()) == len(set(first.splitlines()) | set(second.splitlines()))
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
        PartReader(Parts({}, "the file")).payload(value)


def test_parts_that_nest_without_end_are_refused() -> None:
    """No honest file can hold a circle; one that was made by hand does not end the process."""
    with pytest.raises(DamagedRecordError, match="levels deep"):
        PartReader(Parts({"a": {"$part": "b"}, "b": [{"$part": "a"}]})).payload({"$part": "a"})
    with pytest.raises(DamagedRecordError, match="begin with each other"):
        PartReader(Parts({"a": {"$more": ["b", 1, []]}, "b": {"$more": ["a", 1, []]}})).payload({"$part": "a"})
