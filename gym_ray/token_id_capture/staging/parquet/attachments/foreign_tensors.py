"""Tensors of a library that is not imported here, read by the few methods that they share.

An inference worker has torch; the capture inside it must not need it. A tensor says its type in text and gives numpy
its numbers, or its bits where numpy has no such number.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gym_ray.errors import RefusedRecordError
from gym_ray.token_id_capture.staging.parquet.attachments.attachment_kinds import RAW_BITS

__all__ = ["is_foreign_tensor", "tensor_bits"]

_SIGNED: Final = {1: "int8", 2: "int16"}
"""Types that every release of torch knows, as wide as the numbers whose bits they stand for."""


def is_foreign_tensor(value: Any) -> bool:
    """Whether a value offers what a torch tensor does: ``detach``, ``cpu``, ``numpy``, a type and a shape."""
    kind = type(value)
    return all(callable(getattr(kind, name, None)) for name in ("detach", "cpu", "numpy")) and all(
        hasattr(value, name) for name in ("dtype", "shape")
    )


def tensor_bits(label: str, tensor: Any) -> tuple[str, NDArray[Any]]:
    """Return the name of a tensor's type and an array of its numbers, or of their bits (:data:`RAW_BITS`).

    A tensor in this process's memory is not copied; one on a device is copied to the host.

    Raises:
        RefusedRecordError: It is sparse, quantised or nested, or it cannot be brought here as it is.
    """
    name = str(tensor.dtype).rpartition(".")[2]
    _refuse_layouts(label, tensor)
    try:
        here = tensor.detach().cpu()
        for method in ("resolve_conj", "resolve_neg"):
            if callable(getattr(here, method, None)):
                here = getattr(here, method)()
        if name in RAW_BITS:
            bits = np.dtype(RAW_BITS[name])
            library = sys.modules[type(tensor.dtype).__module__]
            return name, np.asarray(here.view(getattr(library, _SIGNED[bits.itemsize])).numpy()).view(bits)
        return name, np.asarray(here.numpy())
    except Exception as error:  # a foreign library may raise anything; the call's tokens are at stake, not its tensor
        raise RefusedRecordError(
            f"attachment {label}, a tensor of type {tensor.dtype}, cannot be read as an array: {error}"
        ) from error


def _refuse_layouts(label: str, tensor: Any) -> None:
    layout = str(getattr(tensor, "layout", "strided")).rpartition(".")[2]
    if getattr(tensor, "is_sparse", False) is True or layout not in ("strided", "_mkldnn"):
        raise RefusedRecordError(
            f"attachment {label} is a sparse tensor ({layout}); hand over its indices and values, or a dense tensor"
        )
    for flag, what in (("is_quantized", "quantised"), ("is_nested", "nested")):
        if getattr(tensor, flag, False) is True:
            raise RefusedRecordError(f"attachment {label} is a {what} tensor; hand over plain tensors")
