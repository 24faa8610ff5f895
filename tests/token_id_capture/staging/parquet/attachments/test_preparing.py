"""Everything that a framework may hand over becomes the bytes that a reader expects, or is refused by name."""

from __future__ import annotations

import enum
import hashlib
import sys
from collections import OrderedDict
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_ray.errors import RefusedRecordError
from gym_ray.token_id_capture.staging.parquet.attachments.attachment_kinds import NUMPY_DTYPES, RAW_BITS, storage_dtype
from gym_ray.token_id_capture.staging.parquet.attachments.preparing import PreparedAttachment, prepare_attachments


def one(value: Any) -> PreparedAttachment:
    (prepared,) = prepare_attachments({"x": value})
    return prepared


def stored(prepared: PreparedAttachment, max_bytes: int = 1 << 20) -> bytes:
    parts = list(prepared.parts(max_bytes))
    assert all(part.nbytes == max_bytes for part in parts[:-1])
    assert all(0 < part.nbytes <= max_bytes for part in parts)
    data = b"".join(parts)
    assert prepared.nbytes == len(data)
    assert prepared.sha256 == hashlib.sha256(data).digest()
    return data


def numbers(dtype: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Arbitrary bits, all different, in a type; truth values are 0 or 1."""
    kind = np.dtype(dtype)
    count = int(np.prod(shape)) * kind.itemsize
    raw = np.arange(count, dtype=np.uint32).astype(np.uint8)
    return (raw % 2 if kind.name == "bool" else raw).view(kind).reshape(shape)


LAYOUTS = {
    "C order": lambda a: np.ascontiguousarray(a),
    "Fortran order": lambda a: np.asfortranarray(a),
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "strided": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "negative strides": lambda a: np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1],
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", sorted(NUMPY_DTYPES | set(RAW_BITS)))
def test_every_type_in_every_layout_is_stored_in_c_order(name: str, layout: str) -> None:
    plain = numbers(getattr(ml_dtypes, name) if name in RAW_BITS else name, (6, 5))
    prepared = one(LAYOUTS[layout](plain))
    assert (prepared.name, prepared.item, prepared.dtype, prepared.shape) == ("x", 0, name, (6, 5))
    assert stored(prepared, 16) == plain.tobytes()


@pytest.mark.parametrize("name", sorted(NUMPY_DTYPES))
def test_big_endian_numbers_are_stored_little_endian(name: str) -> None:
    plain = numbers(name, (3, 4))
    swapped = plain.astype(plain.dtype.newbyteorder(">"))
    prepared = one(swapped)
    assert prepared.dtype == name
    assert stored(prepared, 16) == plain.tobytes()


def test_big_endian_bfloat16_is_stored_little_endian() -> None:
    plain = numbers(ml_dtypes.bfloat16, (7,))
    swapped = plain.view(np.uint16).byteswap().view(np.dtype(ml_dtypes.bfloat16).newbyteorder(">"))
    assert stored(one(swapped)) == plain.tobytes()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1)])
def test_scalars_and_empty_tensors_keep_their_shape(shape: tuple[int, ...]) -> None:
    prepared = one(np.zeros(shape, np.float32))
    assert prepared.shape == shape
    assert stored(prepared) == bytes(4 * int(np.prod(shape)))


def test_a_numpy_number_is_a_tensor_without_dimensions() -> None:
    prepared = one(np.int16(-2))
    assert (prepared.dtype, prepared.shape, stored(prepared)) == ("int16", (), b"\xfe\xff")


@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
    st.integers(16, 200),
    st.sampled_from(["<u1", ">i2", "<f4", ">f8", "<c16"]),
)
@settings(max_examples=150, deadline=None)
def test_any_view_of_any_array_is_cut_into_whole_parts(shape: list[int], random: Any, size: int, dtype: str) -> None:
    array = numbers(dtype, tuple(2 * n for n in shape))
    view = array[tuple(slice(None, None, random.choice([1, 2, -1, -2])) for _ in shape)]
    view = view.transpose(random.sample(range(len(shape)), len(shape)))
    assert stored(one(view), size) == np.ascontiguousarray(view).astype(np.dtype(dtype).newbyteorder("<")).tobytes()


def test_a_contiguous_tensor_is_not_copied() -> None:
    array = np.arange(1000, dtype=np.float32)
    (first, *_) = one(array).parts(64)
    array[0] = 7.0
    assert np.frombuffer(first, np.float32)[0] == 7.0


def test_parts_of_a_copied_tensor_stay_as_they_are() -> None:
    array = np.arange(1000, dtype=np.float32)[::2]
    parts = list(one(array).parts(64))
    array[:] = 0
    assert np.concatenate([np.frombuffer(part, np.float32) for part in parts]).tolist() == list(range(0, 1000, 2))


@pytest.mark.parametrize(
    "value",
    [b"\x00png", bytearray(b"\x00png"), memoryview(b"\x00png"), memoryview(b"g-n-p-\x00-")[::-2][1:]],
    ids=["bytes", "bytearray", "memoryview", "strided memoryview"],
)
def test_bytes_are_stored_as_they_are(value: Any) -> None:
    prepared = one(value)
    expected = bytes(value)
    assert (prepared.dtype, prepared.shape, stored(prepared)) == ("bytes", (len(expected),), expected)


def test_a_view_of_wider_items_is_its_bytes() -> None:
    assert stored(one(memoryview(np.arange(3, dtype="<i4")))) == np.arange(3, dtype="<i4").tobytes()


def test_no_bytes_and_no_text_are_kept_as_such() -> None:
    prepared = prepare_attachments({"a": b"", "b": "", "c": memoryview(np.zeros((2, 0)))})
    assert [(p.dtype, p.shape, stored(p)) for p in prepared] == [
        ("bytes", (0,), b""),
        ("str", (0,), b""),
        ("bytes", (0,), b""),
    ]


def test_text_is_stored_as_utf_8() -> None:
    prepared = one("pixel ☃")
    assert (prepared.dtype, prepared.shape, stored(prepared)) == ("str", (9,), "pixel ☃".encode())


def test_a_list_is_an_entry_and_its_items() -> None:
    prepared = prepare_attachments(
        OrderedDict(b=[np.zeros((1, 2), np.uint8), np.ones(3, np.float64), b"raw", "text"], a=(), c=[np.int8(1)])
    )
    assert [(p.name, p.item, p.dtype, p.shape) for p in prepared] == [
        ("b", 0, "list", (4,)),
        ("b", 0, "uint8", (1, 2)),
        ("b", 1, "float64", (3,)),
        ("b", 2, "bytes", (3,)),
        ("b", 3, "str", (4,)),
        ("a", 0, "list", (0,)),
        ("c", 0, "list", (1,)),
        ("c", 0, "int8", ()),
    ]
    assert stored(prepared[0]) == b""


@pytest.mark.parametrize(
    ("value", "kind", "shape"),
    [
        (pa.table({"a": [1, None], "b": ["x", "y"], "c": [[1.5], None]}), "arrow:table", (2, 3)),
        (pa.record_batch({"a": pa.array([True, None])}), "arrow:record_batch", (2, 1)),
        (pa.array(["a", None, "b"]).dictionary_encode(), "arrow:array", (3,)),
        (pa.chunked_array([[1], [2, 3]]), "arrow:chunked_array", (3,)),
        (pa.table({}), "arrow:table", (0, 0)),
        (pa.array([], pa.float16()), "arrow:array", (0,)),
    ],
)
def test_arrow_values_are_one_ipc_stream(value: Any, kind: str, shape: tuple[int, ...]) -> None:
    prepared = one(value)
    assert (prepared.dtype, prepared.shape) == (kind, shape)
    table = pa.ipc.open_stream(stored(prepared, 100)).read_all()
    if kind == "arrow:table":
        assert table.equals(value)
    elif kind == "arrow:record_batch":
        assert table.equals(pa.Table.from_batches([value]))
    else:
        assert table["value"].to_pylist() == value.to_pylist()
        assert table["value"].type == value.type


def test_a_large_table_is_written_a_few_megabytes_at_a_time() -> None:
    table = pa.table({"a": np.arange(3 << 20)})
    batches = pa.ipc.open_stream(stored(one(table))).read_all().to_batches()
    assert max(batch.nbytes for batch in batches) <= 4 << 20
    assert pa.Table.from_batches(batches).equals(table)


class Dtype:
    """A type of a library that looks like torch; its module is where the other types are found."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"torchlike.{self.name}"


class Tensor:
    """What is read of a torch tensor, on a device that numpy cannot see before ``cpu``."""

    layout = "torchlike.strided"
    is_sparse = False

    def __init__(self, array: Any, dtype: Dtype, device: str = "cuda:0", **flags: Any) -> None:
        self.array, self.dtype, self.device, self.shape = array, dtype, device, array.shape
        for name, value in flags.items():
            setattr(self, name, value)

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return Tensor(self.array, self.dtype, "cpu")

    def view(self, dtype: Dtype) -> Tensor:
        return Tensor(self.array.view(dtype.name), dtype, self.device)

    def numpy(self) -> Any:
        if self.device != "cpu":
            raise TypeError("can't convert a tensor on a device to numpy")
        if self.array.dtype.kind == "V":
            raise TypeError(f"unsupported ScalarType {self.dtype}")
        return self.array


@pytest.fixture
def torchlike(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("torchlike")
    for name in (*NUMPY_DTYPES, *RAW_BITS):
        setattr(module, name, Dtype(name))
    monkeypatch.setattr(Dtype, "__module__", "torchlike")
    monkeypatch.setitem(sys.modules, "torchlike", module)
    return module


@pytest.mark.parametrize("name", [*sorted(RAW_BITS), "float32", "bool", "complex64"])
def test_a_tensor_on_a_device_is_read_through_the_host(torchlike: ModuleType, name: str) -> None:
    plain = numbers(getattr(ml_dtypes, name, name), (4, 6))
    prepared = one(Tensor(plain.T, getattr(torchlike, name)))
    assert (prepared.dtype, prepared.shape) == (name, (6, 4))
    assert stored(prepared, 16) == np.ascontiguousarray(plain.T).tobytes()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"layout": "torchlike.sparse_coo"}, "sparse tensor"),
        ({"is_quantized": True}, "quantised tensor"),
        ({"is_nested": True}, "nested tensor"),
    ],
)
def test_a_tensor_that_is_no_plain_array_is_refused(torchlike: Any, flags: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedRecordError, match=f"'x'.*{message}"):
        one(Tensor(np.zeros(3, np.float32), torchlike.float32, **flags))


def test_a_tensor_that_fails_when_it_is_read_is_refused_with_its_reason(torchlike: Any) -> None:
    class Meta(Tensor):
        def cpu(self) -> Tensor:
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")

    with pytest.raises(RefusedRecordError, match=r"'x'.*Cannot copy out of meta tensor"):
        one(Meta(np.zeros(3, np.float32), torchlike.float32))


class SparseMatrix:
    shape = (2, 2)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array([{}, []], object), "array of Python objects"),
        (np.zeros(2, [("a", "i4"), ("b", "f4")]), "structured array with the fields a, b"),
        (np.zeros(2, "M8[s]"), "array of times"),
        (np.zeros(2, "m8[s]"), "array of time spans"),
        (np.array(["a"]), "array of text"),
        (np.array([b"a"]), "array of byte strings"),
        (np.zeros(2, np.longdouble), "not kept; known: .*bfloat16.*float32"),
        (np.zeros(2, ml_dtypes.int4), "element type int4"),
        (np.zeros(2, "V3"), "not kept"),
        (np.ma.masked_array([1, 2], [True, False]), "masked array"),
        ({"inner": np.zeros(1)}, "is a mapping"),
        ([[np.zeros(1)]], r"'x'\[0\] is a list in a list"),
        ([np.zeros(1), None], r"'x'\[1\] is None"),
        ([1, 2], r"'x'\[0\] is a Python int"),
        (None, "is None"),
        (True, "Python bool"),
        (1.5, "Python float"),
        (SparseMatrix(), "is sparse"),
        ({1, 2}, "is a set, which is not kept"),
        (object(), "is a object"),
        (b"x".decode, "which is not kept"),
        ("\ud800", "no text that can be stored"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(value: Any, message: str) -> None:
    with pytest.raises(RefusedRecordError, match=message) as caught:
        prepare_attachments({"fine": np.zeros(1), "x": value})
    assert "'x'" in str(caught.value)


@pytest.mark.parametrize("name", [1, b"x", None, "", "\udc80"])
def test_a_name_that_is_not_text_is_refused(name: Any) -> None:
    with pytest.raises(RefusedRecordError, match="attachment name"):
        prepare_attachments({name: np.zeros(1)})


class Key(str, enum.Enum):  # noqa: UP042 - str() of it is not its value, unlike that of a StrEnum
    PIXELS = "pixels"


class Twin(str):
    """Equal to nothing but itself."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def test_a_name_is_the_text_whatever_it_is_called_in_the_program() -> None:
    (one,) = prepare_attachments({Key.PIXELS: b"x"})
    assert (type(one.name), one.name) == (str, "pixels")


def test_one_name_twice_is_refused() -> None:
    with pytest.raises(RefusedRecordError, match="attachment name 'a' is there twice"):
        prepare_attachments({Twin("a"): b"x", Twin("a"): b"y"})


@pytest.mark.parametrize("value", [None, [("x", 1)], "text"])
def test_what_is_no_mapping_is_refused(value: Any) -> None:
    with pytest.raises(RefusedRecordError, match="must be a mapping"):
        prepare_attachments(value)


def test_an_empty_mapping_is_fine() -> None:
    assert prepare_attachments({}) == []


if find_spec("torch") is not None:  # no dependency of the project: checked where it happens to be there

    def test_real_torch_tensors() -> None:
        torch = import_module("torch")
        tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
        prepared = one(tensor.t())
        assert (prepared.dtype, prepared.shape) == ("bfloat16", (3, 2))
        assert stored(prepared) == tensor.t().contiguous().view(torch.int16).numpy().tobytes()


@pytest.mark.parametrize("name", ["bytes", "str", "list", "arrow:table", "object"])
def test_only_tensors_have_a_storage_type(name: str) -> None:
    assert storage_dtype(name) is None
