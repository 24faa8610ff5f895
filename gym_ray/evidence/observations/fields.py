"""What the fields of observations have in common: strict texts, finite numbers, opaque payloads."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, get_args

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
    nested_fields: ClassVar[tuple[str, ...]] = ()
    """The fields that hold models themselves, one or a list of them."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Note which fields hold models, so that a payload is never searched for them."""
        super().__pydantic_init_subclass__(**kwargs)
        cls.nested_fields = tuple(name for name, field in cls.model_fields.items() if _holds_models(field.annotation))

    def plain(self) -> dict[str, Any]:
        """Return every field, null where nothing was said, as new plain objects; payloads are shared (D71)."""
        members = dict(vars(self))
        for name in self.nested_fields:
            value = members[name]
            if isinstance(value, list):
                members[name] = [each.plain() for each in value]
            elif value is not None:
                members[name] = value.plain()
        return members


def _holds_models(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, Observed):
        return True
    return any(_holds_models(part) for part in get_args(annotation))


class ModelServerRef(Observed):
    """Names a model server of the run.

    Attributes:
        type: Always ``responses_api_models``.
        name: Its name in the settings.
    """

    type: Literal["responses_api_models"]
    name: StrictStr
