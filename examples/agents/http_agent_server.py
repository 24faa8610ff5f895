"""An agent server of your own: it holds the conversation itself and lets a resources server score it.

Start the servers with ``gym-ray env start --config question_agent.yaml``, then this one beside them, then collect with
``gym-ray eval run --no-serve --agent question_agent``. The settings file names it:

    question_agent:
      responses_api_agents:
        http_agent: {base_url: "http://127.0.0.1:7000"}
"""

import argparse
from typing import Any

import uvicorn
from starlette.requests import Request

from gym_ray.agents import ResponsesAPIAgentConfig, RunServers, ServerClient, SimpleResponsesAPIAgent


class QuestionAgentConfig(ResponsesAPIAgentConfig):
    """Which servers of the run it calls."""

    model_server: str = "policy_model"
    resources_server: str = "mcqa"


class QuestionAgent(SimpleResponsesAPIAgent):
    """Asks the model once."""

    config: QuestionAgentConfig

    async def run(self, request: Request, body: dict[str, Any]) -> Any:  # noqa: ARG002 - every handler gets both
        """Run one row: open a session, ask, have the answer scored."""
        client, resources = self.server_client, self.config.resources_server
        seeded = (await client.post(resources, "/seed_session", json=body)).raise_for_status()
        # The call to itself goes over HTTP, as any other client's would; its prefix carries the rollout on.
        path = self.url_path_for_run("/v1/responses", body)
        answer = (await client.post(self.config.name, path, json=body["responses_create_params"])).raise_for_status()
        scored = {**body, "response": answer.json()}
        verified = await client.post(resources, "/verify", json=scored, cookies=dict(seeded.cookies))
        return verified.raise_for_status().json()

    async def responses(self, request: Request, body: dict[str, Any]) -> Any:
        """Hold one conversation with the model server, under the prefix that the request came in with."""
        path = self.url_path_for_request("/v1/responses", request)
        answer = await self.server_client.post(self.config.model_server, path, json=body)
        return answer.raise_for_status().json()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head", default="http://127.0.0.1:11000", help="where `gym-ray env start` can be asked")
    parser.add_argument("--name", default="question_agent", help="this agent's name in the settings of the run")
    parser.add_argument("--port", type=int, default=7000)
    args = parser.parse_args()
    agent = QuestionAgent(QuestionAgentConfig(name=args.name), ServerClient(RunServers.from_head(args.head)))
    uvicorn.run(agent.setup_webserver(), host="127.0.0.1", port=args.port)


if __name__ == "__main__":
    main()
