"""What a model server tells its capture about how it came to an answer (A52)."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from gym_ray.errors import EngineError, UnsupportedRequestError
from gym_ray.model_call_capture.exchanges.exchange import ExecutionFacts, publish_execution_facts
from gym_ray.model_server.engine import EngineAnswer

__all__ = ["publish_answer", "publish_failure"]


def publish_answer(scope: MutableMapping[str, Any], answer: EngineAnswer, *, streamed: bool) -> None:
    """Publish the facts of an engine's answer; ``streamed`` tells whether the client hears it as it is generated."""
    if answer.local_reason is not None:
        asked = answer.replaced_status is not None
        facts = ExecutionFacts(asked, "local", answer.replaced_status, answer.local_reason, streamed=streamed)
    else:
        refused = answer.status if answer.status >= 400 else None
        facts = ExecutionFacts(True, "upstream", refused, streamed=streamed)
    publish_execution_facts(scope, facts)


def publish_failure(scope: MutableMapping[str, Any], error: EngineError) -> None:
    """Publish that an engine gave no answer; nothing when it was not asked because the request cannot be."""
    if not isinstance(error, UnsupportedRequestError):
        publish_execution_facts(scope, ExecutionFacts(True, None))
