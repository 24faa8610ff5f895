"""From a client's dialect to an engine's and back, for every pairing (A131, A155-A169).

Requests go client -> Responses -> engine, answers engine -> Responses -> client: four converters serve nine pairings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gym_ray.dialects import CHAT, MESSAGES, RESPONSES
from gym_ray.dialects.conversion import (
    chat_to_responses,
    messages_to_responses,
    responses_to_chat,
    responses_to_messages,
)
from gym_ray.dialects.conversion.chat_wishes import heard_in_chat
from gym_ray.dialects.conversion.namespaces import restore_names
from gym_ray.dialects.conversion.preparation import PreparedRequest
from gym_ray.errors import UnsupportedRequestError

__all__ = ["Bridge", "dialect_to_ask"]

_NEAREST: Final = {
    RESPONSES: (RESPONSES, CHAT, MESSAGES),
    CHAT: (CHAT, RESPONSES, MESSAGES),
    MESSAGES: (MESSAGES, RESPONSES, CHAT),
}


def dialect_to_ask(client: str, spoken: Collection[str]) -> str | None:
    """Return the dialect in which an engine is asked for a client of dialect ``client``; None when it speaks none."""
    return next((dialect for dialect in _NEAREST[client] if dialect in spoken), None)


@dataclass(frozen=True, slots=True)
class Bridge:
    """One request on its way from a client's dialect to an engine's.

    Attributes:
        client: The client's dialect.
        engine: The dialect that the engine is asked in.
        body: What the engine is asked; never a stream (A132).
        hub: The same request in the Responses shape; None where client and engine speak the same dialect.
        prepared: What the client asked, checked.
        split_think: Reasoning in ``<think>`` tags of a chat answer becomes a reasoning item (A166).
    """

    client: str
    engine: str
    body: dict[str, Any]
    hub: dict[str, Any] | None
    prepared: PreparedRequest
    split_think: bool

    @classmethod
    def of(
        cls,
        client: str,
        engine: str,
        prepared: PreparedRequest,
        *,
        default_max_tokens: int,
        split_think: bool = True,
        unsigned_thinking: bool = True,
    ) -> Bridge:
        """Convert a request.

        Args:
            client: The client's dialect.
            engine: The dialect to ask the engine in.
            prepared: The client's request.
            default_max_tokens: Bound of the answer where the engine's dialect demands one and the request has none.
            split_think: See the attribute.
            unsigned_thinking: The engine takes thinking without a signature; false leaves such thinking out.

        Raises:
            UnsupportedRequestError: A field is malformed (422) or has no form in the engine's dialect (400).
        """
        if client == engine:
            return cls(client, engine, prepared.body, None, prepared, split_think)
        hub, carried = _to_hub(client, prepared.body)
        try:
            if engine == RESPONSES:
                body = dict(hub)
            elif engine == CHAT:
                body = responses_to_chat.request_to_chat(heard_in_chat(hub), carried=carried)
            else:
                body = responses_to_messages.request_to_messages(
                    hub,
                    default_max_tokens=default_max_tokens,
                    carried=carried,
                    remote_images=True,
                    unsigned_thinking=unsigned_thinking,
                )
        except UnsupportedRequestError as error:
            if client == RESPONSES:
                raise
            # The names in the message are those of the hub, which this client has never seen.
            raise UnsupportedRequestError(f"in terms of Responses, {error.message}", error.status) from None
        return cls(client, engine, body, hub, prepared, split_think)

    def answer(self, answer: Mapping[str, Any], *, keep_id: bool = False) -> dict[str, Any]:
        """Convert the engine's complete answer into the client's dialect, with the client's own tool names (A153).

        Args:
            answer: The answer.
            keep_id: Keep the engine's id, by which a captured call is found (A169); else a converted answer has a new
                one.

        Raises:
            EngineError: The answer has no form in the client's dialect; status 502.
        """
        if self.client == RESPONSES:
            found = self._in_hub(answer, keep_id=keep_id)
            told = found if self.engine == RESPONSES else {**found, "usage": _countable(found.get("usage"))}
            return restore_names(told, self.prepared.namespaces)
        if self.hub is None:
            return dict(answer)
        model = self.prepared.body.get("model")
        asked = model if isinstance(model, str) and model else None
        if self.client == CHAT:
            return responses_to_chat.answer_to_chat(self._in_hub(answer, keep_id=keep_id), model=asked)
        return responses_to_messages.answer_to_messages(self._in_hub(answer, keep_id=keep_id), model=asked)

    def _in_hub(self, answer: Mapping[str, Any], *, keep_id: bool) -> dict[str, Any]:
        if self.hub is None or self.engine == RESPONSES:
            return dict(answer)
        if self.engine == CHAT:
            return chat_to_responses.answer_to_responses(
                answer, self.hub, split_think=self.split_think, keep_id=keep_id
            )
        return messages_to_responses.answer_to_responses(answer, self.hub, keep_id=keep_id)


def _countable(usage: Any) -> Any:
    """Return a usage in which every detail is a number.

    Strict Responses clients refuse the whole answer for a null there. What nobody counted stays unknown in the record,
    which takes the engine's own usage (W13).
    """
    if not isinstance(usage, Mapping):
        return usage
    return {
        name: {key: 0 if count is None else count for key, count in value.items()}
        if isinstance(value, Mapping)
        else value
        for name, value in usage.items()
    }


def _to_hub(client: str, body: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any]]:
    if client == RESPONSES:
        return dict(body), {}
    if client == CHAT:
        return chat_to_responses.request_to_responses(body), chat_to_responses.carried_settings(body)
    hub = messages_to_responses.request_to_responses(body, remote_images=True)
    return hub, messages_to_responses.carried_settings(body)
