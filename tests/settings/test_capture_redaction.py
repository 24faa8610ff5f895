"""What may be taken out of captures: how it is said, and the one line for every mistake in saying it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym_ray.errors import SettingsError
from gym_ray.settings import RunSettings, load_settings, settings_from_yaml

WHOLE = """\
capture_redaction:
  keys: [api_key, Password]
  patterns: ['AIza[0-9A-Za-z_-]{10,}']
  digest_key: ${oc.env:DIGEST_KEY}
"""


@pytest.fixture(autouse=True)
def empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(text: str, *overrides: str) -> RunSettings:
    Path("f.yaml").write_text(text, encoding="utf-8")
    return load_settings(["f.yaml"], overrides, environ={"DIGEST_KEY": "digest-key-123456"})


def test_nothing_is_asked_for_unless_said() -> None:
    redaction = load("{}").capture_redaction
    assert (redaction.keys, redaction.patterns, redaction.digest_key) == ((), (), None)


def test_a_whole_document_survives_its_own_yaml_and_shows_no_key() -> None:
    settings = load(WHOLE)
    redaction = settings.capture_redaction
    assert redaction.keys == ("api_key", "Password")
    assert redaction.patterns == ("AIza[0-9A-Za-z_-]{10,}",)
    assert redaction.digest_key is not None
    assert redaction.digest_key.get_secret_value() == "digest-key-123456"
    assert settings_from_yaml(settings.to_yaml(), "head") == settings
    assert "digest-key" not in settings.to_yaml(redact=True) + repr(settings)
    assert settings_from_yaml(settings.to_yaml(redact=True), "head").capture_redaction.keys == redaction.keys


def test_the_command_line_can_say_it() -> None:
    settings = load("{}", "++capture_redaction.keys=[token]")
    assert settings.capture_redaction.keys == ("token",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "capture_redaction:\n  patterns: ['ok', 'a(b']\n",
            "f.yaml:2: capture_redaction.patterns.1: 'a(b' is not accepted; should be a regular expression: "
            "missing ), unterminated subpattern at position 1",
        ),
        (
            "capture_redaction:\n  patterns: ['x*']\n",
            "f.yaml:2: capture_redaction.patterns.0: 'x*' is not accepted; should not match the empty text, "
            "which stands everywhere",
        ),
        (
            "capture_redaction:\n  key: [a]\n",
            "f.yaml:2: capture_redaction.key: unknown key; did you mean 'keys'?",
        ),
        (
            "capture_redaction:\n  keys: api_key\n",
            "f.yaml:2: capture_redaction.keys: 'api_key' is not accepted; should be a list, in brackets: [one, two]",
        ),
        (
            "capture_redaction:\n  keys: ['']\n",
            "f.yaml:2: capture_redaction.keys.0: '' is not accepted; should not be empty",
        ),
        *(
            (
                f"capture_redaction:\n  digest_key: '{short}'\n",
                "f.yaml:2: capture_redaction.digest_key: the value (secret, not shown) is not accepted; "
                "should have 8 characters or more: a key that is guessed gives secrets away",
            )
            for short in ("", "x" * 7)
        ),
        (
            "capture_redaction:\n  digest_key: 12345\n",
            "f.yaml:2: capture_redaction.digest_key: the value (secret, not shown) is not accepted; "
            "should be text; quote it: '…' in YAML, \"'…'\" on the command line",
        ),
    ],
)
def test_every_mistake_is_one_line_with_its_place(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(text)
    assert str(caught.value) == message


def test_a_value_that_is_no_map_is_a_mistake() -> None:
    with pytest.raises(SettingsError, match=r"f\.yaml:1: capture_redaction: 'yes' is not accepted"):
        load("capture_redaction: 'yes'\n")
