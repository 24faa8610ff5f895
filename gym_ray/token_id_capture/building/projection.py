"""A chain as the ``response.output`` that peers deliver: each call's content, with the running prompt on its carrier.

Every carrier repeats all tokens before it, so the lists grow with the square of a rollout's length. They are made only
for callers that need lists; :func:`iter_projected_output_json` writes the same JSON in pieces from the chain's own
arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import orjson

from gym_ray import exact_json
from gym_ray.token_id_capture.building.chains import MAIN_CHAIN, PER_REQUEST, BuildOutput, Chain, ChainLink
from gym_ray.token_id_capture.packed import PackedEntry
from gym_ray.token_id_capture.records import TOKEN_FIELDS
from gym_ray.token_id_capture.token_arrays import TokenArray

__all__ = [
    "assert_prefix_contiguity",
    "iter_projected_output_json",
    "main_chain",
    "project_chain_to_output_items",
    "project_main_chain_response",
]

_TOKENS_A_PIECE: Final = 8192
_PIECE_BYTES: Final = 1 << 16


def project_chain_to_output_items(chain: Chain) -> list[dict[str, Any]]:
    """Return the output items of every call, in order; the carrier of each has its tokens as lists (B116).

    Items are copies, what is nested in them is shared with the records. Memory grows with calls times tokens.
    """
    items: list[dict[str, Any]] = []
    tokens = chain.token_ids()
    for link in chain.links:
        for item, is_carrier in _items(link.packed):
            if is_carrier:
                item["prompt_token_ids"] = tokens[: link.prompt_len].tolist()
                item["generation_token_ids"] = link.packed.generation_token_ids.tolist()
                item["generation_log_probs"] = link.packed.generation_log_probs.tolist()
                if link.packed.routed_experts is not None:
                    item["routed_experts"] = link.packed.routed_experts
            items.append(item)
    return items


def iter_projected_output_json(chain: Chain) -> Iterator[bytes]:
    """Yield the JSON array of :func:`project_chain_to_output_items` in pieces.

    Joined they are what ``exact_json.dumps`` makes of the list, item by item. A piece is an item's content, one call's
    own tokens, or a bounded stretch of the running prompt, whose text is the only thing that is kept.
    """
    tokens = chain.token_ids()
    prompt = _PromptText(tokens)
    opening = b"["
    for link in chain.links:
        for item, is_carrier in _items(link.packed):
            body = exact_json.dumps(item)
            yield opening
            opening = b","
            if not is_carrier:
                yield body
                continue
            yield body[:-1] + (b"," if item else b"") + b'"prompt_token_ids":['
            yield from prompt.up_to(link.prompt_len)
            yield b"]," + _own_arrays(link)
    yield b"]"


def main_chain(out: BuildOutput) -> Chain:
    """Return the chain with the id ``main``, else the first one.

    Raises:
        ValueError: There is no chain; or there are several of single requests, of which none is the main one (B99).
    """
    if not out.chains:
        raise ValueError("no chain was built: there is no call with generated tokens whose sequence is proved")
    if out.notes.builder == PER_REQUEST and len(out.chains) > 1:
        raise ValueError(f"builder {PER_REQUEST!r} made {len(out.chains)} chains: they do not go into one response")
    return next((chain for chain in out.chains if chain.chain_id == MAIN_CHAIN), out.chains[0])


def project_main_chain_response(rollout_id: str, out: BuildOutput, model: str = "") -> dict[str, Any]:
    """Return the main chain as a Responses object with tokens on its carriers (B117).

    Raises:
        ValueError: There is no chain, or nothing was generated, or there are several chains of single requests.
    """
    chain = main_chain(out)
    if not chain.generated:
        raise ValueError(f"rollout {rollout_id!r}: nothing was generated on the chain {chain.chain_id!r}")
    return {
        "id": f"proj-{rollout_id}",
        "model": model,
        "object": "response",
        "output": project_chain_to_output_items(chain),
        "usage": {"input_tokens": int(chain.root_prompt_tokens.size), "output_tokens": chain.generated},
    }


def assert_prefix_contiguity(response: Mapping[str, Any]) -> None:
    """Check that the prompt of every carrier starts with all that came before it (B118).

    Raises:
        AssertionError: One does not; its place in the output is named.
    """
    seen: list[int] | None = None
    for position, item in enumerate(response.get("output") or ()):
        if not isinstance(item, Mapping) or item.get("generation_token_ids") is None:
            continue
        prompt = item.get("prompt_token_ids") or []
        if seen is None:
            seen = []
        elif prompt[: len(seen)] != seen:
            raise AssertionError(
                f"output item {position}: its prompt of {len(prompt)} tokens does not start with the {len(seen)} tokens"
                " before it"
            )
        seen += prompt[len(seen) :]
        seen += item["generation_token_ids"]


class _PromptText:
    """The tokens of a chain as JSON numbers, encoded once however often they are repeated."""

    def __init__(self, tokens: TokenArray) -> None:
        self._tokens = tokens
        self._encoded = 0
        self._pieces: list[bytes] = []

    def up_to(self, end: int) -> Iterator[bytes]:
        while self._encoded < end:
            stop = min(self._encoded + _TOKENS_A_PIECE, end)
            text = (b"," if self._encoded else b"") + _numbers(self._tokens[self._encoded : stop])
            if self._pieces and len(self._pieces[-1]) < _PIECE_BYTES:
                self._pieces[-1] += text
            else:
                self._pieces.append(text)
            self._encoded = stop
        yield from self._pieces


def _items(record: PackedEntry) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield a copy of each content item without token fields, and whether it carries the call's tokens."""
    items = record.output_items or [{"type": "message"}]
    index = record.token_item_index
    if index is not None and 0 <= index < len(items):
        carriers = {index}
    else:
        marked = {at for at, item in enumerate(items) if item.get("generation_token_ids") is not None}
        carriers = marked or {len(items) - 1}
    for at, item in enumerate(items):
        yield {name: value for name, value in item.items() if name not in TOKEN_FIELDS}, at in carriers


def _own_arrays(link: ChainLink) -> bytes:
    record = link.packed
    log_probs = record.generation_log_probs.astype(np.float64)  # as lists have them: a float32 has shorter digits
    text = b'"generation_token_ids":[%b],"generation_log_probs":[%b]' % (
        _numbers(record.generation_token_ids),
        _numbers(log_probs),
    )
    if record.routed_experts is not None:
        text += b',"routed_experts":' + exact_json.dumps(record.routed_experts)
    return text + b"}"


def _numbers(values: np.ndarray[Any, Any]) -> bytes:
    return orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
