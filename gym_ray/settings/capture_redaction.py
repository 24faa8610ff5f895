"""What is taken out of captures before they are written, beyond the run's own credentials."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, SecretStr

from gym_ray.settings.fields import FrozenModel, Name

__all__ = ["CaptureRedaction"]

_MIN_KEY_CHARS = 8
"""No more, for what stands for a key in redacted settings must load as well."""


def _regular_expression(text: str) -> str:
    try:
        compiled = re.compile(text)
    except re.error as error:
        raise ValueError(f"should be a regular expression: {error}") from None
    if compiled.search("") is not None:
        raise ValueError("should not match the empty text, which stands everywhere")
    return text


def _hard_to_guess(key: SecretStr | None) -> SecretStr | None:
    if key is not None and len(key.get_secret_value()) < _MIN_KEY_CHARS:
        raise ValueError(f"should have {_MIN_KEY_CHARS} characters or more: a key that is guessed gives secrets away")
    return key


class CaptureRedaction(FrozenModel):
    """``capture_redaction``: all of it is opt-in; the run's own credentials are taken out in any case.

    Attributes:
        keys: JSON keys, in any case and at any depth of a request or an answer, whose text, number or boolean is
            replaced.
        patterns: Regular expressions whose matches are replaced.
        digest_key: Key of the digests that stand for what was taken out, at least 8 characters. Runs that share it can
            be joined by them; None takes a random one for all servers that are started together.
    """

    keys: tuple[Name, ...] = ()
    patterns: tuple[Annotated[Name, AfterValidator(_regular_expression)], ...] = ()
    digest_key: Annotated[SecretStr | None, AfterValidator(_hard_to_guess)] = None
