"""Checks whether the prompt that an engine reports begins with the tokens that went in (B94, B95, W35).

If it does not, the call is untrainable. Whether it is served is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gym_ray.token_id_capture.exact_tokens import ExactTokens, TokenOutcome, Untrainable
from gym_ray.token_id_capture.reasons import PREFIX_NOT_SUPPLIED
from gym_ray.token_id_capture.token_arrays import TokenArray, starts_with

__all__ = ["SuppliedPrefix"]


@dataclass(frozen=True, slots=True, eq=False)
class SuppliedPrefix:
    """Tokens that the prompt of one call has to begin with.

    Attributes:
        token_ids: The tokens.
        token_in: How they went in, as a record says it.
        whole: They are the whole prompt and not only its beginning.
    """

    token_ids: TokenArray
    token_in: str
    whole: bool = False

    def problem(self, prompt: TokenArray) -> str:
        """Return where a prompt departs from the tokens that went in; "" when it does not."""
        wanted = self.token_ids
        if starts_with(prompt, wanted) and not (self.whole and prompt.size > wanted.size):
            return ""
        common = min(prompt.size, wanted.size)
        differing = np.flatnonzero(prompt[:common] != wanted[:common])
        where = f"differs from index {differing[0]} on" if differing.size else f"ends or goes on at index {common}"
        return f"the engine's prompt of {prompt.size} tokens {where}; {wanted.size} tokens went in"

    def proven(self, outcome: TokenOutcome) -> TokenOutcome:
        """Return the outcome with what it says about the prefix, ``prefix_not_supplied`` where the prompt departs."""
        if isinstance(outcome, Untrainable):
            return replace(outcome, prefix_requested=True)
        problem = self.problem(outcome.prompt_token_ids)
        if problem:
            return Untrainable(PREFIX_NOT_SUPPLIED, problem, prefix_requested=True)
        return _supplied(outcome, self.token_in)


def _supplied(outcome: ExactTokens, token_in: str) -> ExactTokens:
    return replace(outcome, prefix_requested=True, prefix_supplied=True, token_in=token_in)
