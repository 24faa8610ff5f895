"""Whether a run captures model calls, where, and who writes (A126 to A129). The only reading of these keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from gym_ray.capture_location import CaptureLocation, is_url
from gym_ray.errors import SettingsError

__all__ = ["CapturePlace", "CaptureSettings", "directory_of"]


def _place(value: Any) -> Path | str:
    if isinstance(value, Path):
        return value
    if not isinstance(value, str):
        raise PydanticCustomError("path_type", "Input is not a valid path")
    if is_url(value) and not value.lower().startswith("file://"):
        return value
    return Path(CaptureLocation(value).where) if is_url(value) else Path(value)


CapturePlace = Annotated[Path | str, PlainValidator(_place), PlainSerializer(str, when_used="json")]
"""A path, or the URL of an object store as text. Whether it can be used is seen when it is used."""


def directory_of(place: Path | str | None) -> Path | None:
    """Return the directory that a place is, None for an object store or no place."""
    return place if isinstance(place, Path) else None


class CaptureSettings(BaseModel):
    """Whether model calls are captured, and where (A126 to A128). The only reading of these keys (A129).

    Attributes:
        observability_enabled: Capture every model call.
        model_call_capture_dir: Absolute directory that model servers and collector share, or the URL of an object
            store, such as ``s3://bucket/prefix``; not looked at when off.
        model_call_capture_storage_options: What fsspec is given for a URL; credentials may be among it.
        model_call_capture_writer: ``direct``: each model server writes by itself. ``hosted``: they hand their records
            to one process that has the place mounted.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True, protected_namespaces=())

    observability_enabled: bool = False
    model_call_capture_dir: CapturePlace | None = None
    model_call_capture_storage_options: Mapping[str, Any] = Field(default_factory=dict, repr=False)
    model_call_capture_writer: Literal["direct", "hosted"] = "direct"

    @model_validator(mode="after")
    def _check_place(self) -> CaptureSettings:
        if not self.observability_enabled:
            return self
        place = self.model_call_capture_dir
        if place is None:
            raise ValueError("model_call_capture_dir is required when observability_enabled is true")
        if isinstance(place, Path):
            if not place.is_absolute():
                raise ValueError("model_call_capture_dir must be an absolute path when observability_enabled is true")
            if self.model_call_capture_storage_options:
                raise ValueError("model_call_capture_storage_options go with a URL; a directory takes none")
            return self
        try:
            CaptureLocation.of(place)
        except SettingsError as error:
            raise ValueError(f"model_call_capture_dir is not usable: {error.problem}") from error
        return self

    @property
    def capture_location(self) -> CaptureLocation | None:
        """Where captures are if capture is on, else None."""
        place = self.model_call_capture_dir
        if not self.observability_enabled or place is None:
            return None
        return CaptureLocation.of(place, self.model_call_capture_storage_options)

    @property
    def capture_dir(self) -> Path | None:
        """The directory if capture is on and goes to one, else None."""
        return self.shared_dir if self.observability_enabled else None

    @property
    def shared_dir(self) -> Path | None:
        """The directory that servers and collector share, whether capture is on or off; None where there is none."""
        return directory_of(self.model_call_capture_dir)
