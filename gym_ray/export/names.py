"""Spells the names of metrics so that an experiment tracker takes them (D120).

MLflow refuses a whole batch for one name that it does not like, so every name is made acceptable before it is sent.
"""

from __future__ import annotations

import re

__all__ = ["MLFLOW_NAME_LENGTH", "mlflow_name"]

MLFLOW_NAME_LENGTH = 250
"""Longest name that MLflow takes, in characters."""

_REFUSED = re.compile(r"[^\w\-. :/]")
_LEADING_DOTS = re.compile(r"^\.+")
_CUT = "___"


def mlflow_name(name: str) -> str | None:
    """Return a metric's name as MLflow takes it, None if nothing is left of it (D120).

    ``@`` is spelled ``_at_``, every other refused character ``_``. Empty segments of the path go, and the dots that a
    segment begins with become ``_``, since MLflow reads names as paths. A name that is too long loses its middle.
    """
    spelled = _REFUSED.sub("_", name.replace("@", "_at_"))
    segments = (_LEADING_DOTS.sub(lambda dots: "_" * len(dots[0]), part) for part in spelled.split("/") if part)
    path = "/".join(segments)
    if len(path) > MLFLOW_NAME_LENGTH:
        tail = (MLFLOW_NAME_LENGTH - len(_CUT)) // 2
        path = path[: MLFLOW_NAME_LENGTH - len(_CUT) - tail] + _CUT + path[-tail:]
    return path or None
