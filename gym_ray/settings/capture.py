"""Whether a run captures model calls, and where (A126 to A129). The only reading of the two keys."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, model_validator

__all__ = ["CaptureSettings"]


class CaptureSettings(BaseModel):
    """Whether model calls are captured, and where (A126 to A128). The only reading of the two keys (A129).

    Attributes:
        observability_enabled: Capture every model call.
        model_call_capture_dir: Absolute directory that model servers and collector share; not looked at when off.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True, protected_namespaces=())

    observability_enabled: bool = False
    model_call_capture_dir: Path | None = None

    @model_validator(mode="after")
    def _check_directory(self) -> CaptureSettings:
        if not self.observability_enabled:
            return self
        if self.model_call_capture_dir is None:
            raise ValueError("model_call_capture_dir is required when observability_enabled is true")
        if not self.model_call_capture_dir.is_absolute():
            raise ValueError("model_call_capture_dir must be an absolute path when observability_enabled is true")
        return self

    @property
    def capture_dir(self) -> Path | None:
        """The directory if capture is on, else None."""
        return self.model_call_capture_dir if self.observability_enabled else None
