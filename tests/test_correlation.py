"""What the vectors do not cover: ids that were taken from a request unchecked stay one segment of a URL."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_ray.correlation import (
    AgentUrls,
    apply_rollout_prefix,
    check_rollout_id,
    restore_prefix_in_location,
    rollout_path_prefix,
    split_rollout_prefix,
)
from gym_ray.errors import RolloutIdError

VALID = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]*", fullmatch=True)
ANY = st.text(min_size=1).filter(lambda text: "/" not in text and text.isprintable())


@given(VALID, st.booleans())
def test_a_valid_id_stands_in_urls_as_it_is(rollout_id: str, tokens: bool) -> None:
    prefix = rollout_path_prefix(rollout_id, tokens)
    assert prefix == f"/ng-rollout/{rollout_id}" + "/training-token-capture" * tokens
    split = split_rollout_prefix(f"{prefix}/v1/responses")
    assert split is not None
    assert (split.rollout_id, split.token_capture, split.prefix) == (rollout_id, tokens, prefix)


@given(ANY)
def test_any_other_id_survives_the_way_through_a_url(rollout_id: str) -> None:
    url = apply_rollout_prefix("http://h:1", rollout_id) + "/v1/responses"
    assert url.isascii()
    parts = urlsplit(url)
    assert (parts.netloc, parts.query, parts.fragment) == ("h:1", "", "")
    split = split_rollout_prefix(unquote(parts.path))  # as an ASGI server decodes it
    assert split is not None
    assert (split.rollout_id, split.rest) == (rollout_id, "/v1/responses")


@pytest.mark.parametrize("rollout_id", ["a b", "a?b=c", "a#b", "a%2Fb", "a/b", "\udc80", "ä"])
def test_no_id_changes_what_a_url_means(rollout_id: str) -> None:
    for url in (
        AgentUrls(True, False, {"m": "http://h:1"}).resolve_model_base_url("m", rollout_id),
        "http://h:1" + AgentUrls.url_path_for_request("/v1", rollout_id, "/ng-rollout/x/v1"),
    ):
        parts = urlsplit(url)
        assert (parts.path.count("/"), parts.query, parts.fragment) == (3, "", "")


def test_a_redirect_of_an_odd_id_gets_a_header_that_can_be_sent() -> None:
    split = split_rollout_prefix("/ng-rollout/a b€/v1/responses/")
    assert split is not None
    location = restore_prefix_in_location("http://h/v1/responses", 307, "h", split.prefix)
    assert location == "http://h/ng-rollout/a%20b%E2%82%AC/v1/responses"


@pytest.mark.parametrize("location", ["http://[", "http://[::1/v1", "//h\u2100/v1", "http://]/v1"])
def test_a_redirect_to_what_is_no_url_stays_as_it_is(location: str) -> None:
    assert restore_prefix_in_location(location, 307, "h", "/ng-rollout/0-0") == location


def test_an_id_that_no_file_can_be_named_after_is_refused() -> None:
    assert check_rollout_id("a" * 230) == "a" * 230
    with pytest.raises(RolloutIdError, match="231 characters, use at most 230"):
        check_rollout_id("a" * 231)
