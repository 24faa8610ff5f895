"""What the fields of observations have in common: strict texts, finite numbers, opaque payloads."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictStr

__all__ = ["Amount", "Count", "ModelServerRef", "Number", "Observed", "Opaque"]

Number = Annotated[float, Field(allow_inf_nan=False)]
"""A number that JSON can hold."""
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A measured amount, which is never negative."""
Count = Annotated[int, Field(ge=0)]
"""A count, which is never negative."""
Opaque = Any
"""A payload that is carried and never looked into."""


class Observed(BaseModel):
    """The base of everything observed: no field but its own, checked again whenever one is set (D70)."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)


class ModelServerRef(Observed):
    """Names a model server of the run.

    Attributes:
        type: Always ``responses_api_models``.
        name: Its name in the settings.
    """

    type: Literal["responses_api_models"]
    name: StrictStr
