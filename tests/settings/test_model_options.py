"""What a model server's options accept, and how they say no."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym_ray.errors import SettingsError
from gym_ray.settings import AnthropicModelOptions, VllmModelOptions, load_settings


def load(tmp_path: Path, implementation: str, **options: str) -> object:
    lines = ["policy_model:", "  responses_api_models:", f"    {implementation}:"]
    lines += [f"      {key}: {value}" for key, value in options.items()]
    path = tmp_path / "models.yaml"
    path.write_text("\n".join(lines) + "\n")
    return load_settings([path], environ={}).servers["policy_model"].options


def refusal(tmp_path: Path, implementation: str, **options: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, implementation, **options)
    return str(caught.value)


VLLM = {"base_url": "http://127.0.0.1:8000/v1", "model": "m"}


def test_a_vllm_server_speaks_all_dialects_unless_told_otherwise(tmp_path: Path) -> None:
    stock = load(tmp_path, "vllm_model", **VLLM)
    older = load(tmp_path, "vllm_model", **VLLM, dialects="[chat]")
    assert isinstance(stock, VllmModelOptions)
    assert isinstance(older, VllmModelOptions)
    assert (stock.dialects, older.dialects) == (("responses", "chat", "messages"), ("chat",))


def test_tokens_go_into_a_vllm_server_only_where_that_is_said(tmp_path: Path) -> None:
    stock = load(tmp_path, "vllm_model", **VLLM)
    assert isinstance(stock, VllmModelOptions)
    assert not stock.scale_out
    assert not stock.supply_prefix_token_ids
    for name in ("scale_out", "supply_prefix_token_ids"):
        options = load(tmp_path, "vllm_model", **VLLM, **{name: "true"})
        assert isinstance(options, VllmModelOptions)
        assert getattr(options, name) is True


def test_an_anthropic_server_needs_a_key_and_a_model_only(tmp_path: Path) -> None:
    options = load(tmp_path, "anthropic_model", anthropic_api_key="sk-1", anthropic_model="claude")
    assert isinstance(options, AnthropicModelOptions)
    assert options.anthropic_base_url == "https://api.anthropic.com/v1"


@pytest.mark.parametrize(
    ("implementation", "options", "expected"),
    [
        ("vllm_model", {"dialects": "[morse]"}, ["vllm_model.dialects", "morse"]),
        ("vllm_model", {"dialects": "[]"}, ["vllm_model.dialects"]),
        ("vllm_model", {"extra_body": "{stream: true}"}, ["vllm_model.extra_body", "must not hold stream"]),
        ("vllm_model", {"max_body_bytes": "0"}, ["vllm_model.max_body_bytes"]),
        ("vllm_model", {"keep_alive_s": "0"}, ["vllm_model.keep_alive_s"]),
        ("vllm_model", {"scale_out": "true", "dialects": "[responses]"}, ["vllm_model.scale_out", "has no chat"]),
        (
            "vllm_model",
            {"supply_prefix_token_ids": "true", "dialects": "[messages]"},
            ["supply_prefix_token_ids", "has no chat"],
        ),
        (
            "vllm_model",
            {"scale_out": "true", "supply_prefix_token_ids": "true"},
            ["vllm_model.supply_prefix_token_ids", "one way or the other"],
        ),
        ("vllm_model", {"scale_out": "perhaps"}, ["vllm_model.scale_out"]),
        ("vllm_model_with_compaction", {"dialects": "[responses]"}, ["with_compaction.dialects", "should be [chat]"]),
    ],
)
def test_a_mistake_names_file_and_key(
    tmp_path: Path, implementation: str, options: dict[str, str], expected: list[str]
) -> None:
    message = refusal(tmp_path, implementation, **VLLM, **options)
    assert [part for part in ["models.yaml", *expected] if part not in message] == []
    assert "\n" not in message
