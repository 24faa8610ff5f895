"""Whole runs with a scripted agent: what is dispatched, what is stored, what a resumed run does (D5 to D57, D112)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gym_ray import exact_json
from gym_ray.agents.context import ServerUrls
from gym_ray.agents.runner import AgentRunner
from gym_ray.cli.run_flags import with_attempt_budget
from gym_ray.cli.run_plan import end_plan, plan_of
from gym_ray.correlation import derive_rollout_id
from gym_ray.errors import GymRayError
from gym_ray.evidence.run_result import RunResult
from gym_ray.rollouts.clearing import Clearing
from gym_ray.rollouts.collection import Progress
from gym_ray.rollouts.ending import end_run, incomplete, nothing_produced
from gym_ray.rollouts.joining import Joiner
from gym_ray.rollouts.ports import AttemptJob
from gym_ray.rollouts.session import RunSession
from gym_ray.settings import RunSettings, load_settings
from gym_ray.testing.fake_rollouts import FakePort

OF_THE_PEER_ALONE = ("_ng_environment_server", "_ng_result_type")
OURS = {"out_metrics.json", "quality_summary.json", "rollout_verdicts.jsonl"}
"""Files that the peer has not, or not in a run of the vector: it was told to check nothing."""


class ScriptedAgent(httpx.AsyncBaseTransport):
    """The agent behind HTTP: says what the vector says, and writes the captures that its model server would."""

    def __init__(self, script: dict[str, Any], captures: Path) -> None:
        self._script, self._captures = script, captures
        self.posts: list[dict[str, Any]] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        row = json.loads(await request.aread())
        task, rollout, attempt = (row.get(f"_ng_{name}_index") for name in ("task", "rollout", "attempt"))
        self.posts.append({"task": task, "rollout": rollout, "attempt": attempt})
        step = self._script.get(f"{task}-{rollout}" + (f"#a{attempt}" if attempt else ""), {})
        if step.get("exchanges"):
            self._captures.mkdir(exist_ok=True)
            with (self._captures / f"{derive_rollout_id(row)}.capture.jsonl").open("ab") as file:
                file.writelines(exact_json.dumps(exchange, as_line=True) for exchange in step["exchanges"])
        if step.get("raise") == "value":
            raise ValueError("a defect of the client")
        if step.get("raise") == "payload":
            return httpx.Response(200, stream=CutStream())
        body = step["raw_body"].encode() if "raw_body" in step else exact_json.dumps(step.get("reply", {"reward": 1.0}))
        return httpx.Response(step.get("status", 200), content=body)


class CutStream(httpx.AsyncByteStream):
    async def __aiter__(self) -> Any:
        yield b'{"rew'
        raise httpx.RemoteProtocolError("peer closed connection without sending complete message body")


class Port(FakePort):
    """Runs the configured agents and clears captures in earnest."""

    def __init__(self, runner: AgentRunner, clearing: Clearing, joiner: Joiner) -> None:
        async def run(job: AttemptJob) -> RunResult:
            return await runner.run(job.row, job.rollout_id, job.agent, job.timeout_s)

        super().__init__(None, run, joiner=joiner)
        self._clearing = clearing

    async def clear(self, rollout_ids: Sequence[str]) -> None:
        await self._clearing.clear(rollout_ids)


class World:
    """The work directory of one case."""

    def __init__(self, root: Path, run: dict[str, Any]) -> None:
        self.root, self.captures = root, root / "cap"
        for name, text in run.get("pre_files", {}).items():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_text(text)
        if "input_rows" in run:
            (root / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in run["input_rows"]))
        self.before = self.files()
        self.agent = ScriptedAgent(run.get("script", {}), self.captures)
        self.aggregate_posts: list[Any] = []
        self.settings = self._settings(run)

    def _settings(self, run: dict[str, Any]) -> RunSettings:
        document = {
            "toy_agent": {"responses_api_agents": {"http_agent": {"base_url": "http://agent"}}},
            "observability_enabled": run.get("capture", True) is not False,
            "model_call_capture_dir": str(self.captures),
            "output_jsonl_fpath": str(self.root / "out.jsonl"),
            **({"input_jsonl_fpath": str(self.root / "in.jsonl")} if "input_rows" in run else {}),
            **run["config"],
        }
        place = self.root / ".gym-ray-settings"
        place.mkdir()
        (place / "run.yaml").write_text(yaml.safe_dump(document))
        (place / "env.yaml").write_text("{}\n")
        settings = load_settings([place / "run.yaml"], [], env_file=place / "env.yaml", environ={})
        return with_attempt_budget(settings, run.get("env", {}))[0]

    async def run(self) -> Progress:
        """Run as the command does, but in this process."""
        plan = plan_of(self.settings)
        session = RunSession(plan)
        async with httpx.AsyncClient(transport=self.agent) as http:
            try:
                await asyncio.to_thread(session.begin)
                runner = AgentRunner(self.settings, ServerUrls({}, {}), run_token=None, http=http)
                clearing = Clearing(plan.captures)
                joiner = Joiner(plan.paths, plan.captures, options=plan.join)
                try:
                    progress = await session.collection(Port(runner, clearing, joiner)).run()
                finally:
                    await joiner.aclose()
                    await clearing.aclose()
                    await runner.aclose()
            finally:
                session.close()
        self.ending = end_run(plan.paths, end_plan(self.settings), post=self._post)
        assert self.ending.problems == ()
        return progress

    def _post(self, agent: str, body: Iterator[bytes]) -> bytes | None:
        self.aggregate_posts.append((agent, json.loads(b"".join(body))))
        return None

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.root.iterdir() if path.is_file()}

    def lines(self, name: str) -> list[Any] | None:
        path = self.root / name
        if not path.exists():
            return None
        return [parsed(line) for line in path.read_text().splitlines() if line.strip()]


def parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return "UNPARSEABLE"


def key(record: Any) -> tuple[Any, ...]:
    return tuple(record.get(f"_ng_{name}_index") for name in ("task", "rollout")) if isinstance(record, dict) else ()


def settled(expected: Any, ours: Any) -> Any:
    """Return what is expected, with our numbers where any number will do."""
    if isinstance(expected, dict) and isinstance(ours, dict):
        return {name: settled(value, ours.get(name)) for name, value in expected.items()}
    if isinstance(expected, list) and isinstance(ours, list) and len(expected) == len(ours):
        return [settled(*pair) for pair in zip(expected, ours, strict=True)]
    return ours if expected == "ANY_NUMBER" and isinstance(ours, int | float) else expected


def order_of(record: dict[str, Any]) -> str:
    return str([*key(record), record.get("_ng_attempt_index"), record.get("elapsed_seconds")])


def without_peer_keys(record: Any) -> Any:
    if not isinstance(record, dict):
        return record
    return {name: value for name, value in record.items() if name not in OF_THE_PEER_ALONE}


def check_failures(world: World, expected: list[dict[str, Any]]) -> None:
    """Our rows say what the peer's say, in our words, and have their evidence beside it (D36)."""
    ours = world.lines("out_failures.jsonl")
    assert ours is not None
    assert sorted(map(key, ours), key=str) == sorted(map(key, expected), key=str)
    pairs = zip(sorted(ours, key=order_of), sorted(map(without_peer_keys, expected), key=order_of), strict=True)
    for record, theirs in pairs:
        own_words = {name: theirs.pop(name) for name in ("_ng_failure_type", "_ng_failure_message") if name in theirs}
        assert {name: record.get(name) for name in theirs} == theirs
        assert all(isinstance(record.get(name), str) for name in own_words)
        if own_words:
            captured = world.settings.capture_dir is not None
            assert ("ng_model_call_capture" in record) == captured


def check_kept(world: World, expected: dict[str, Any], *, order: bool) -> None:
    """Compare everything that both leave on disk."""
    assert world.lines("out_materialized_inputs.jsonl") == expected["materialized"]
    output = sorted(world.lines("out.jsonl") or [], key=key)
    assert output == settled([without_peer_keys(record) for record in expected["output"]], output)
    check_failures(world, expected["failures"])
    captures = sorted(path.name for path in world.captures.glob("*.capture.*"))
    assert [name for name in captures if (world.captures / name).stat().st_size] == (expected["capture_files"] or [])
    assert set(world.files()) - OURS == set(expected["files"]) - ({"in.jsonl"} - set(world.files()))
    posts = [{name: post[name] for name in ("task", "rollout", "attempt")} for post in expected["run_posts"]]
    assert (world.agent.posts if order else sorted(world.agent.posts, key=str)) == (
        posts if order else sorted(posts, key=str)
    )


@pytest.fixture
def world(case: dict[str, Any], tmp_path: Path) -> World:
    return World(tmp_path, case["run"])


def departure(case: dict[str, Any], departures: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    rules = [(name, rule) for name, rule in departures.items() if rule["file"] == "D_run.json"]
    found = [(name, rule) for name, rule in rules if case["name"] in rule["ids"]]
    return found[0] if found else None


async def test_a_run_leaves_what_the_vector_says(
    case: dict[str, Any], world: World, departures: dict[str, Any]
) -> None:
    expected, left = case["expected"], departure(case, departures)
    if left is not None and "refused" in left[1]["expected"]:
        with pytest.raises((GymRayError, ValueError), match=left[1]["expected"]["refused"]):
            await world.run()
        kept = {name: data for name, data in world.files().items() if data}
        assert kept == {name: data for name, data in world.before.items() if data}, "it changes nothing"
        assert world.agent.posts == []
        return
    progress = await world.run()
    plan = end_plan(world.settings)
    if left is not None:
        check_departure(world, progress, left[1]["expected"])
        return
    failed = nothing_produced(progress, world.ending) or incomplete(plan, progress)
    assert failed == ("error" in expected)
    if not (failed and not expected["aggregate_file_exists"]):
        assert (world.root / "out_aggregate_metrics.json").exists() == expected["aggregate_file_exists"]
        posts = [post["body"]["verify_responses"] for post in expected["aggregate_posts"]]
        theirs = [[without_peer_keys(reply) for reply in replies] for replies in posts]
        sent = [body["verify_responses"] for _, body in world.aggregate_posts]
        assert sent == settled(theirs, sent)
    else:
        (world.root / "out_aggregate_metrics.json").unlink(missing_ok=True)
    check_kept(world, expected, order=world.settings.num_samples_in_parallel == 1)


def check_departure(world: World, progress: Progress, expected: dict[str, Any]) -> None:
    """A failed rollout is a recorded failure where it ends the peer's run."""
    assert progress.complete
    failures = sorted(world.lines("out_failures.jsonl") or [], key=order_of)
    assert [record["_ng_failure_class"] for record in failures] == expected["failure_classes"]
    assert [record["_ng_failure_http_status"] for record in failures] == [code or None for code in expected["statuses"]]
    assert len(world.lines("out.jsonl") or []) == expected["done"]
