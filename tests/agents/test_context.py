from __future__ import annotations

import httpx
import pytest

from gym_ray.agents import RunContext, ServerUrls
from gym_ray.errors import AgentError

URLS = ServerUrls({"policy_model": "http://h:1/"}, {"mcqa": "http://h:2"})


async def test_urls_carry_the_rollout() -> None:
    async with httpx.AsyncClient() as client:
        ctx = RunContext("3-1-a2", client, "key", URLS)
        assert ctx.base_url("policy_model") == "http://h:1/ng-rollout/3-1-a2/v1"
        assert ctx.root_url("policy_model") == "http://h:1/ng-rollout/3-1-a2"
        assert ctx.resources_url("mcqa") == "http://h:2/ng-rollout/3-1-a2"


async def test_model_urls_of_a_training_rollout_carry_the_segment() -> None:
    async with httpx.AsyncClient() as client:
        ctx = RunContext("3-1", client, "key", URLS, token_capture=True)
        assert ctx.base_url("policy_model") == "http://h:1/ng-rollout/3-1/training-token-capture/v1"
        assert ctx.root_url("policy_model") == "http://h:1/ng-rollout/3-1/training-token-capture"
        assert ctx.resources_url("mcqa") == "http://h:2/ng-rollout/3-1"


@pytest.mark.parametrize("method", ["base_url", "root_url", "resources_url", "open_session"])
async def test_an_unknown_name_says_what_is_known(method: str) -> None:
    async with httpx.AsyncClient() as client:
        with pytest.raises(AgentError, match=r"no .* server is named 'other'; known: (policy_model|mcqa)"):
            getattr(RunContext("0-0", client, "key", URLS), method)("other")
