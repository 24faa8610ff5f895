r"""Reads the chosen letter out of a model's text: pure functions, one per grading mode (D152-D157).

A wrong reading is a wrong reward. So every mode refuses what is ambiguous, and nothing guesses across modes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["GRADING_MODES", "SERVER_ONLY_MODES", "allowed_options", "extract_answer"]

STRICT, LENIENT, COLON = "strict_single_letter_boxed", "lenient_boxed", "lenient_answer_colon"
COLON_MARKDOWN = "lenient_answer_colon_md"
GRADING_MODES = (STRICT, LENIENT, COLON)
"""Modes that a row may ask for (D150)."""
SERVER_ONLY_MODES = (COLON_MARKDOWN,)
"""Modes that only the server's settings can select (D150)."""

_BOX = "\\boxed{"
_TEXT_WRAPPER = re.compile(r"\\text\s*\{(.*)\}", re.DOTALL)
_TEXT_ANYWHERE = re.compile(r"\\text\s*\{([^{}]*)\}")
_LONE_CAPITAL = re.compile(r"[^A-Za-z]*([A-Z])[^A-Za-z]*")
_LEADING_CAPITAL = re.compile(r"([A-Z])\s*[:).\-]")
_COLON = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)
_COLON_MARKDOWN = re.compile(r"answer[*_]*\s*[:：][*_]*\s*([^\n]*)", re.IGNORECASE)  # noqa: RUF001 - full width
_JOINED_LETTERS = re.compile(
    r"(?<!\w)([A-Za-z])(?:\s*(?:[/|&,;]|\bor\b|\band\b)\s*|\s+)([A-Za-z])(?!\w)", re.IGNORECASE
)
_MD_LEADING = re.compile(r"(?:([A-Z])(?!\w)|([a-z])\s*[:).])")
_MD_CAPITAL = re.compile(r"(?<!\w)([A-Z])(?!\w)")

# Letters that stand for A to D in multiple-choice questions of these scripts.
_SCRIPT_LETTERS = {
    "أ": "A", "\u0627": "A", "ب": "B", "ج": "C", "د": "D",
    "অ": "A", "ব": "B", "ড": "C", "ঢ": "D",
    "ক": "A", "খ": "B", "গ": "C", "ঘ": "D",
}  # fmt: skip
_SCRIPT = re.compile(
    r"(?<![\w\u0600-\u06ff\u0980-\u09ff])([" + "".join(_SCRIPT_LETTERS) + r"])(?![\w\u0600-\u06ff\u0980-\u09ff])"
)


def allowed_options(options: Sequence[Mapping[str, Any]] | None) -> dict[str, str]:
    """Return upper-case letter to option text: single-letter keys with a text only (D151)."""
    allowed = {}
    for option in options or ():
        for key, text in option.items():
            letter = key.upper()
            if len(letter) == 1 and letter.isalpha() and text is not None:
                allowed[letter] = str(text)
    return allowed


def extract_answer(
    text: str, options: Mapping[str, str], mode: str, template: Mapping[str, Any] | None = None
) -> str | None:
    """Return the letter that the text chooses, or None when it chooses none or is ambiguous.

    Args:
        text: The model's whole text, stripped.
        options: Upper-case letter to option text.
        mode: Grading mode.
        template: ``output_regex`` (text or list of texts; tried first, D152) and ``answer_prefix``.
    """
    template = template or {}
    if not text:
        return None
    found = _by_regex(text, options, template.get("output_regex"))
    if found is not None:
        return found
    if mode == STRICT:
        return _strict_box(text, options)
    if mode == LENIENT:
        return _strict_box(text, options) or _lenient_box(text, options)
    if mode == COLON:
        return _colon(text, options)
    return _colon_markdown(text, options, template.get("answer_prefix"))


def _normalised(text: str) -> str:
    return " ".join(text.lower().split())


def _option_with_text(text: str, options: Mapping[str, str]) -> str | None:
    wanted = _normalised(text)
    return next((letter for letter, option in options.items() if wanted and _normalised(option) == wanted), None)


def _map_scripts(text: str) -> str:
    return _SCRIPT.sub(lambda match: _SCRIPT_LETTERS[match.group(1)], unicodedata.normalize("NFKC", text))


def _by_regex(text: str, options: Mapping[str, str], patterns: object) -> str | None:
    """Read with the row's own patterns: last match, first non-empty group (D153)."""
    if isinstance(patterns, str):
        patterns = [patterns]
    if not isinstance(patterns, list):
        return None
    for pattern in patterns:
        try:
            matches = list(re.finditer(pattern, text, re.IGNORECASE))
        except (re.error, TypeError):
            continue  # an invalid pattern yields nothing; the grading mode decides
        if not matches:
            continue
        last = matches[-1]
        content = next((group for group in last.groups() if group), last.group(0) if not last.groups() else "").strip()
        letter = _map_scripts(content).strip().upper()
        if len(letter) == 1 and letter.isalpha():
            return letter
        by_text = _option_with_text(content, options)
        if by_text is not None:
            return by_text
    return None


def _last_box(text: str) -> str | None:
    """Return what stands in the last box, None without one or when it is not closed."""
    start = text.rfind(_BOX)
    if start < 0:
        return None
    begin = start + len(_BOX)
    depth = 1
    for position in range(begin, len(text)):
        if text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
            if depth == 0:
                return text[begin:position]
    return None


def _strict_box(text: str, options: Mapping[str, str]) -> str | None:
    content = _last_box(text)
    if content is None:
        return None
    content = content.strip()
    while wrapped := _TEXT_WRAPPER.fullmatch(content):
        content = wrapped.group(1).strip()
    match = _LONE_CAPITAL.fullmatch(content) or _LEADING_CAPITAL.match(content)
    return match.group(1) if match and match.group(1) in options else None


def _lenient_box(text: str, options: Mapping[str, str]) -> str | None:
    content = _normalised(_last_box(text) or "")
    named = [letter for letter, option in options.items() if (wanted := _normalised(option)) and wanted in content]
    return named[0] if len(named) == 1 else None


def _colon(text: str, options: Mapping[str, str]) -> str | None:
    match = _COLON.search(text)
    if match is None:
        return None
    payload = match.group(1)
    while (unwrapped := _TEXT_ANYWHERE.sub(r"\1", payload)) != payload:
        payload = unwrapped
    payload = payload.strip()
    if len(payload) == 1:
        return payload.upper() if payload.upper() in options else None
    return _option_with_text(payload, options)


def _colon_markdown(text: str, options: Mapping[str, str], prefix: object) -> str | None:
    prefix = prefix if isinstance(prefix, str) and prefix else None
    for payload in reversed(list(_payloads(text, prefix))):
        found = _from_payload(payload, options)
        if found is not None:
            return found
    return _strict_box(text, options) if prefix is not None else None


def _payloads(text: str, prefix: str | None) -> Iterator[str]:
    """Yield what follows each ``Answer:`` and each prefix, in text order."""
    found = [(match.start(), match.group(1)) for match in _COLON_MARKDOWN.finditer(text)]
    if prefix is not None:
        pattern = re.compile(re.escape(prefix) + r"[ \t]*([^\n]*)", re.IGNORECASE)
        found += [(match.start(), match.group(1)) for match in pattern.finditer(text)]
    for _, payload in sorted(found):
        yield payload


def _from_payload(payload: str, options: Mapping[str, str]) -> str | None:
    payload = _strip_punctuation(_map_scripts(payload))
    for match in _JOINED_LETTERS.finditer(payload):
        first, second = (group.upper() for group in match.groups())
        if first != second and first in options and second in options:
            return None
    if len(payload) == 1:
        return payload.upper() if payload.upper() in options else None
    leading = _MD_LEADING.match(payload)
    if leading is not None:
        letter = (leading.group(1) or leading.group(2)).upper()
        if letter in options:
            return letter
    capitals = [letter for letter in _MD_CAPITAL.findall(payload) if letter in options]
    return capitals[-1] if capitals else None


def _strip_punctuation(text: str) -> str:
    start, end = 0, len(text)
    while start < end and _is_outer(text[start]):
        start += 1
    while end > start and _is_outer(text[end - 1]):
        end -= 1
    return text[start:end]


def _is_outer(character: str) -> bool:
    return character.isspace() or unicodedata.category(character)[0] in "PS"
