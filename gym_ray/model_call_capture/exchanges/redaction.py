"""Takes secrets out of a raw record before its bytes reach the disk (B67).

The run's own credentials are always looked for, by exact match; values under chosen JSON keys and matches of chosen
regular expressions only when the settings name them. What is taken out leaves a keyed digest, so that equal secrets can
still be joined and none can be guessed from a file. A record that cannot be redacted must not be written.

A secret that a stream spells out over several events is found in the answer that is put together from them. No single
text of the stream's own bytes holds it, so such bytes are left out as a whole.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from gym_ray import exact_json
from gym_ray.model_call_capture.exchanges.spelled_out import delta_texts

__all__ = ["SPELLED_OUT", "Redactor", "secret_digest"]

SPELLED_OUT = "[redacted: a secret is spelled out over several events]"
"""Stands for the bytes of a stream that cannot be kept."""

_DIGEST_BYTES = 8
_LONGEST_DIGEST_KEY = 64
_ESCAPED_IN_JSON = re.compile(r'["\\\x00-\x1f]')

# JSON inside of JSON strings doubles the backslashes of every level. Five levels are read; without a bound, a long run
# of backslashes would cost its square.
_SLASHES, _NO_OR_SLASHES = r"\\{1,31}", r"\\{0,31}"

# Behind a key: blanks, also those that a JSON text inside of a JSON string shows as \n and \t.
_BLANKS = rf"(?:\s|{_SLASHES}[nrt])*"
_BARE = re.compile(r"-?[0-9][0-9.eE+-]*|true|false")


def secret_digest(secret: str, digest_key: bytes) -> str:
    """Return what stands for a secret: ``[redacted:`` and 16 hex digits of its keyed BLAKE2b digest and ``]``."""
    if len(digest_key) > _LONGEST_DIGEST_KEY:
        digest_key = hashlib.blake2b(digest_key).digest()
    text = secret.encode("utf-8", "surrogatepass")
    return f"[redacted:{hashlib.blake2b(text, digest_size=_DIGEST_BYTES, key=digest_key).hexdigest()}]"


class Redactor:
    r"""Finds and replaces secrets in raw records; immutable, safe for any number of threads.

    Args:
        secrets: Texts replaced wherever they stand, plainly, with JSON escapes (``\u002d``, ``\/``) or as a header
            holds them, in JSON inside of JSON strings as well. Empty ones are left out.
        keys: JSON keys, any case and any depth, JSON inside of strings included, whose text, number or boolean is
            replaced. Objects and arrays under them are looked into as usual; null stays.
        patterns: Regular expressions whose matches in texts, and in keys, are replaced.
        digest_key: Key of the digests that stand for what was taken out; without it they prove nothing.

    Raises:
        ValueError: A pattern is no regular expression, or matches the empty text.
    """

    def __init__(
        self, secrets: Sequence[str], *, keys: Sequence[str] = (), patterns: Sequence[str] = (), digest_key: bytes
    ) -> None:
        self._digest_key = digest_key
        meant = {_in_a_header(secret): secret for secret in secrets} | {secret: secret for secret in secrets}
        known = sorted((form for form in meant if form), key=lambda form: (-len(form), form))
        self._marks = [secret_digest(meant[form], digest_key) for form in known]
        self._secret_forms = re.compile("|".join(f"({_any_form(secret)})" for secret in known)) if known else None
        self._anchors = [_anchor(secret) for secret in known]
        self._escapes = _escapes_of("".join(known))
        self._rarest_escape = b"\\u00" if "".join(known).isascii() else b"\\u"  # looked for first: it is cheap
        self._escaped_slash = any("/" in secret for secret in known)
        self._keys = frozenset(key.lower() for key in keys)
        self._key_forms = _key_forms(keys) if keys else None
        self._patterns = [_compiled(pattern) for pattern in patterns]
        self._looks_into_all = bool(self._keys or self._patterns or b"" in self._anchors)

    def __repr__(self) -> str:
        """Say how much is looked for, never what."""
        return f"Redactor({len(set(self._marks))} secrets, {len(self._keys)} keys, {len(self._patterns)} patterns)"

    def concerns(self, line: bytes) -> bool:
        """Whether an encoded record may hold anything to take out; false is certain, and cheap to find."""
        if self._looks_into_all:
            return True
        for anchor in self._anchors:
            if anchor in line:
                return True
        if self._rarest_escape in line and self._escapes.search(line) is not None:
            return True
        return self._escaped_slash and b"\\/" in line

    def redact(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return a raw record without secrets in what client, engine and agent wrote; the given one is not changed.

        Looked into are ``request``, ``response``, ``request_raw``, ``response_raw``, ``client_session_id`` and
        ``usage``. The rest is the server's own.

        Raises:
            RecursionError: A body nests too deeply to be looked into.
        """
        clean = dict(record)
        for name in ("request", "response", "client_session_id", "usage"):
            if clean.get(name) is not None:
                clean[name] = self._value(clean[name])
        for name in ("request_raw", "response_raw"):
            if name in clean:
                clean[name] = SPELLED_OUT if self._spelled_out(clean[name]) else self._raw(clean[name])
        return clean

    def _spelled_out(self, raw: str) -> bool:
        """Whether the pieces of a stream hide less one by one than put together."""
        return any(
            len(pieces) > 1 and self._text("".join(pieces)) != "".join(self._text(piece) for piece in pieces)
            for pieces in delta_texts(raw)
        )

    def _value(self, value: Any) -> Any:
        """Return a parsed JSON value without secrets."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {self._text(key): self._member(key, item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._value(item) for item in value]
        return self._number(value)

    def _member(self, key: str, value: Any) -> Any:
        if value is not None and key.lower() in self._keys and not isinstance(value, dict | list):
            return secret_digest(value if isinstance(value, str) else json.dumps(value), self._digest_key)
        return self._value(value)

    def _number(self, value: Any) -> Any:
        """A number stays one unless its digits are a secret."""
        if self._secret_forms is None or isinstance(value, bool) or not isinstance(value, int | float):
            return value
        text = json.dumps(value)
        clean = self._without_secrets(text)
        return value if clean == text else clean

    def _text(self, text: str) -> str:
        """Return a text without secrets; JSON that it may hold is read as far as it goes."""
        text = self._without_secrets(text)
        if self._key_forms is not None:
            text = self._without_key_values(text)
        for pattern in self._patterns:
            text = pattern.sub(lambda match: secret_digest(match.group(), self._digest_key), text)
        return text

    def _raw(self, raw: str) -> str:
        """Return bytes as they came, without secrets: a JSON text, the lines of an event stream, or anything else."""
        if not (self._keys or self._patterns):
            return self._without_secrets(raw)
        whole = self._json(raw)
        if whole is not None:
            return whole
        return "".join(self._stream_line(line) for line in re.split(r"(?<=[\r\n])", raw))

    def _stream_line(self, line: str) -> str:
        if line.startswith("data:"):
            payload = line[5:].strip()
            clean = self._json(payload)
            if clean is not None:
                return line.replace(payload, clean, 1)
        return self._text(line)

    def _json(self, text: str) -> str | None:
        """Return a JSON text without secrets, as it was where it holds none; None when it is no JSON."""
        try:
            value = exact_json.loads(text.encode("utf-8", "surrogatepass"))
            clean = self._value(value)
            return text if clean == value else exact_json.dumps(clean).decode("utf-8")
        except (ValueError, RecursionError):
            return None

    def _without_secrets(self, text: str) -> str:
        forms = self._secret_forms
        return text if forms is None else forms.sub(self._mark, text)

    def _mark(self, match: re.Match[str]) -> str:
        assert match.lastindex is not None
        return self._marks[match.lastindex - 1]

    def _without_key_values(self, text: str) -> str:
        """Replace the values of chosen keys in a text that is JSON, holds JSON, or is the beginning of some."""
        assert self._key_forms is not None
        parts, done = [], 0
        for match in self._key_forms.finditer(text):
            if match.start() < done:
                continue  # inside of a value that is gone already
            found = _scalar_at(text, match.end(), len(match["slashes"]))
            if found is not None:
                end, value = found
                quote = match["slashes"] + '"'
                parts += [text[done : match.end()], quote, secret_digest(value, self._digest_key), quote]
                done = end
        return "".join([*parts, text[done:]])


def _in_a_header(secret: str) -> str:
    """Return how a text looks in the value of a header, which is Latin-1, when the client sent it as UTF-8."""
    return secret.encode("utf-8", "surrogatepass").decode("latin-1")


def _any_form(secret: str) -> str:
    """Return an expression for a text as it stands and in every JSON spelling, however often it was encoded."""
    return "".join(_any_character_form(character) for character in secret)


def _any_character_form(character: str) -> str:
    escape = "".join(rf"{_SLASHES}u(?i:{unit})" for unit in _utf16(character))
    plain = re.escape(character)
    if character in '"\\/':
        plain = rf"{_NO_OR_SLASHES}{plain}"
    return f"(?:{plain}|{escape})"


def _utf16(text: str) -> list[str]:
    """Return the four hex digits of every UTF-16 unit of a text, as JSON escapes have them."""
    units = text.encode("utf-16-be", "surrogatepass").hex()
    return [units[start : start + 4] for start in range(0, len(units), 4)]


def _escapes_of(text: str) -> re.Pattern[bytes]:
    """Return an expression for an escaped character of a text."""
    codes = [re.sub("[a-f]", lambda letter: f"[{letter[0]}{letter[0].upper()}]", code) for code in set(_utf16(text))]
    return re.compile(rf"\\u(?:{'|'.join(sorted(codes))})".encode()) if codes else re.compile(rb"(?!)")


def _anchor(secret: str) -> bytes:
    """Return the longest part of a secret that an encoded record holds as it is; empty when there is none."""
    return max(_ESCAPED_IN_JSON.split(secret), key=len).encode("utf-8", "surrogatepass")


def _key_forms(keys: Sequence[str]) -> re.Pattern[str]:
    """Return an expression for any of the keys as a JSON key, and for the backslashes that its quotes have."""
    names = "|".join(_any_form(key) for key in keys)
    return re.compile(rf'(?P<slashes>{_NO_OR_SLASHES})"(?:{names})(?P=slashes)"{_BLANKS}:{_BLANKS}', re.IGNORECASE)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    if compiled.search("") is not None:
        raise ValueError(f"{pattern!r} matches the empty text, so it would match everywhere")
    return compiled


def _scalar_at(text: str, start: int, slashes: int) -> tuple[int, str] | None:
    """Return where the text, number or boolean that begins here ends, and what it says; None when there is none.

    Args:
        text: What is read.
        start: Where the value begins.
        slashes: Backslashes before the quotes of this level of JSON: 0, 1 inside of a string, 3 one level deeper.
    """
    opening = "\\" * slashes + '"'
    if not text.startswith(opening, start):
        bare = _BARE.match(text, start)
        return (bare.end(), bare.group()) if bare is not None else None
    start += len(opening)
    piece, quote = start, text.find('"', start)
    while quote >= 0:
        before = text[piece:quote]
        if (len(before) - len(before.rstrip("\\"))) % (2 * slashes + 2) == slashes:
            return quote + 1, _decoded(text[start : quote - slashes], slashes)
        piece, quote = quote + 1, text.find('"', quote + 1)
    line_feed = text.find("\n", start)  # a value that was cut off: no JSON text holds a raw line feed
    end = len(text) if line_feed < 0 else line_feed
    return end, text[start:end]


def _decoded(text: str, slashes: int) -> str:
    """Return what an encoded text says, so that its digest is that of the same text elsewhere."""
    decode: Callable[[str], Any] = json.loads
    try:
        for _ in range((slashes + 1).bit_length()):
            text = decode(f'"{text}"')
    except ValueError:
        return text  # not encoded as its quotes promise: it is what it is
    return text
