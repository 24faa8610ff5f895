"""An agent with a sub-agent that says what it observed: a solver answers, a checker reads it, the solver answers again.

The reply carries ``ng_agent_observations``: which of the two made which model call, by the id of the answer, and what
was said. The collector joins that with the captured calls; a call that nobody claims becomes a gap of the record.
"""

import time
from typing import Any

from openai import AsyncOpenAI
from openai.types.responses import Response

from gym_ray.agents import RunContext
from gym_ray.evidence.observations import AgentInvocation, AgentObservationBundle, ModelCallRef, ModelServerRef

MODEL_SERVER = ModelServerRef(type="responses_api_models", name="policy_model")
CHECK = "Does this answer keep to what was asked? Say yes or no, then why.\n\n{answer}"
AGAIN = (
    "A colleague read your answer and said:\n\n{verdict}\n\nAnswer the question again, in the form that it asks for."
)


class Conversation:
    """One agent's talk with the model, which remembers what it takes to observe it."""

    def __init__(self, client: AsyncOpenAI, name: str, parent: str | None = None) -> None:
        self.client, self.name, self.parent = client, name, parent
        self.items: list[Any] = []
        self.calls: list[ModelCallRef] = []
        self.started = time.perf_counter()

    async def ask(self, *items: Any, **params: Any) -> Response:
        """Send the whole conversation, these items last."""
        self.items += items
        response: Response = await self.client.responses.create(model="policy", input=self.items, **params)
        # The id of the answer and the server that gave it name the call; when it was made does not.
        self.calls.append(ModelCallRef(model_ref=MODEL_SERVER, response_id=response.id))
        self.items += [item.model_dump(mode="json", exclude_none=True) for item in response.output]
        return response

    def observed(self) -> AgentInvocation:
        """Say who talked, for how long, through which calls, and what was said."""
        return AgentInvocation(
            invocation_id=self.name,
            parent_invocation_id=self.parent,
            status="completed",
            duration_ms=(time.perf_counter() - self.started) * 1000,
            model_calls=self.calls,
            conversation=self.items,
        )


async def agent(row: dict[str, Any], ctx: RunContext) -> dict[str, Any]:
    params = dict(row["responses_create_params"])
    asked = params.pop("input")
    question = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    base_url = ctx.base_url(MODEL_SERVER.name)
    async with AsyncOpenAI(base_url=base_url, api_key=ctx.api_key, max_retries=0) as client:
        solver, checker = Conversation(client, "solver"), Conversation(client, "checker", parent="solver")
        first = await solver.ask(*question, **params)
        check = {"role": "user", "content": CHECK.format(answer=first.output_text)}
        verdict = await checker.ask(check, max_output_tokens=params.get("max_output_tokens", 128))
        observed_checker = checker.observed()
        again = {"role": "user", "content": AGAIN.format(verdict=verdict.output_text)}
        response = await solver.ask(again, **params)
    # The answer is the last call's; what the rollout used is the sum of all three, and health checks hold it to that.
    names = ("input_tokens", "output_tokens", "total_tokens")
    used = [answer.usage for answer in (first, verdict, response) if answer.usage is not None]
    usage = {name: sum(getattr(one, name) for one in used) for name in names}
    bundle = AgentObservationBundle(source="observing_agent", records=[solver.observed(), observed_checker])
    answer = response.model_dump(mode="json", exclude_none=True) | {"usage": usage}
    return {"response": answer, "ng_agent_observations": bundle}
