"""Field types that the settings share: what a port, a time or a URL may be.

Messages here complete the sentence "`key`: `value` is not accepted: …" and never repeat the value.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

__all__ = [
    "Count",
    "FrozenModel",
    "HttpUrl",
    "Name",
    "Port",
    "PositiveCount",
    "PositiveSeconds",
    "Replicas",
    "Seconds",
]


class FrozenModel(BaseModel):
    """A part of the settings: it cannot be changed, and a key that it does not know is an error."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        hide_input_in_errors=True,
        protected_namespaces=(),
        str_strip_whitespace=False,
    )


def _not_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("should be a number, not true or false")  # noqa: TRY004 - pydantic reports only ValueError
    return value


def _replicas(value: Any) -> Any:
    number = value
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        number = int(value)
    if number == "per_node" or (isinstance(number, int) and not isinstance(number, bool) and number >= 1):
        return number
    raise ValueError("should be a whole number from 1 up, or per_node")


def _http_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        parts, port_is_valid = urlsplit(""), False
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_valid or " " in value:
        raise ValueError("should be a URL such as http://127.0.0.1:8000/v1")
    if parts.username is not None or parts.password is not None:
        raise ValueError("should hold no user or password, for URLs are logged")
    return value


Number = BeforeValidator(_not_boolean)
Port = Annotated[int, Number, Field(ge=1, le=65535)]
Count = Annotated[int, Number, Field(ge=0)]
PositiveCount = Annotated[int, Number, Field(ge=1)]
Seconds = Annotated[float, Number, Field(ge=0)]
PositiveSeconds = Annotated[float, Number, Field(gt=0)]
Name = Annotated[str, Field(min_length=1)]
Replicas = Annotated[int | str, BeforeValidator(_replicas)]
HttpUrl = Annotated[str, AfterValidator(_http_url)]
