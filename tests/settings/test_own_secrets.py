"""Which texts of the settings are credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym_ray.settings import load_settings, own_secrets

TEXT = """\
policy_api_key: " sk-policy-1 "
capture_redaction: {digest_key: digest-key-123456}
responses_create_params:
  temperature: 0.5
  metadata: {note: not-a-secret}
  extra_headers: {Authorization: Bearer header-token-1, x-api-key: header-key-1}
first:
  responses_api_models:
    openai_model: {openai_base_url: "http://127.0.0.1:1/v1", openai_api_key: sk-first-1, openai_model: model-name}
second:
  responses_api_models:
    openai_model: {openai_base_url: "http://127.0.0.1:2/v1", openai_api_key: EMPTY, openai_model: model-name}
third:
  responses_api_models:
    openai_model: {openai_base_url: "http://127.0.0.1:2/v1", openai_api_key: sk-first-1, openai_model: model-name}
"""


def test_every_key_of_every_server_is_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.yaml").write_text(TEXT)
    settings = load_settings(["f.yaml"], [], environ={})
    found = own_secrets(settings)
    assert found == ("digest-key-123456", "header-key-1", "header-token-1", "sk-first-1", "sk-policy-1")
