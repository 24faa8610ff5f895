"""The judge of killed runs finds each fault that it is there to find."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gym_ray.model_call_capture import CaptureStore
from gym_ray.testing.run_judge import RunJudge
from gym_ray.testing.written_runs import UnsyncedCalls, WrittenRun

ROWS = 3


class Story:
    """A run of three rows that was told by everybody in the same way: the first done, the second failed once."""

    def __init__(self, root: Path) -> None:
        self.run = WrittenRun(root, ROWS, calls=UnsyncedCalls())
        self.store, self._diary, self.asked = CaptureStore(root / "captures"), root / "diary.jsonl", dict[str, str]()
        self.judge = RunJudge(self.run.paths, self.store.root, self._diary, rows=ROWS, asked=self.asked)
        self.tell(0, 0)
        self.tell(1, 0, failed=True)

    def note(self, what: str, rollout: str, **fields: Any) -> None:
        with self._diary.open("a") as file:
            file.write(json.dumps({"what": what, "rollout": rollout, "pid": 1, **fields}) + "\n")

    def call(self, rollout: str, name: str, *, asked_by: str | None = None) -> None:
        self.asked[name] = f"{asked_by or rollout} call"
        self.note("answer", rollout, id=name)
        self.store.record(rollout, {"call_id": f"call-{name}", "response": {"id": name}})

    def record_of(self, rollout: str, *names: str) -> dict[str, Any]:
        calls = [{"model_call_id": f"call-{name}", "response_id": name} for name in names]
        refs = [{"model_call_id": f"call-{name}"} for name in names]
        return {
            "answers": list(names),
            "ng_model_call_capture": {"rollout_id": rollout, "calls": calls},
            "ng_agent_observations": {"records": [{"model_calls": refs}]},
        }

    def tell(self, row: int, attempt: int, *, failed: bool = False, **fields: Any) -> None:
        """Let an attempt run and end."""
        rollout = f"{row}-0" + (f"-a{attempt}" if attempt else "")
        self.run.start(row, attempt)
        self.note("began", rollout)
        names = [f"{rollout}:1", f"{rollout}:2"]
        for name in names:
            self.call(rollout, name)
        self.note("ended", rollout)
        failure = {"_ng_failure_class": "agent_run_error"} if failed else {}
        written = self.run.record(row, attempt, **{**self.record_of(rollout, *names), **failure, **fields})
        self.run.log(row, attempt, written)


@pytest.fixture
def story(tmp_path: Path) -> Any:
    told = Story(tmp_path)
    yield told
    told.run.close()


def test_a_true_story_is_believed(story: Story) -> None:
    standing = story.judge.look()
    assert (standing.done, standing.gated, standing.pending) == ({0}, set(), {1, 2})
    story.run.start(2, 0)
    story.note("began", "2-0")
    assert story.judge.look().unrecorded == {"2-0"}
    story.tell(2, 1)
    story.tell(1, 1, failed=True)
    story.tell(1, 2, failed=True)
    standing = story.judge.look(whole=True)
    assert (standing.done, standing.gated, standing.pending) == ({0, 2}, {1}, set())


def with_gap(story: Story, code: str) -> None:
    record = story.record_of("2-0", "2-0:1", "2-0:2")
    record["ng_model_call_capture"]["gaps"] = [{"code": code}]
    story.tell(2, 0, **record)


def test_a_server_that_died_makes_a_result_doubted_and_not_wrong(story: Story) -> None:
    with_gap(story, "model_call_capture_writer_unreachable")
    assert story.judge.look().doubted == {"2-0"}


def gap_without_a_death(story: Story) -> None:
    with_gap(story, "model_call_capture_calls_missing")


def test_a_half_line_is_counted_and_not_forgiven_at_the_end(story: Story) -> None:
    story.judge.look()
    with story.run.paths.output.open("ab") as file:
        file.write(b'{"half')
    assert story.judge.look().torn == 6
    with pytest.raises(AssertionError, match="half lines are left"):
        story.judge.look(whole=True)


def test_a_run_that_is_not_over_is_not_whole(story: Story) -> None:
    with pytest.raises(AssertionError, match="neither done nor given up"):
        story.judge.look(whole=True)


def ran_twice(story: Story) -> None:
    story.note("began", "0-0")


def torn_line(story: Story) -> None:
    with story.run.paths.output.open("ab") as file:
        file.write(b'{"half\n')


def two_records(story: Story) -> None:
    story.run.record(0, 0, **story.record_of("0-0", "0-0:1", "0-0:2"))


def two_results(story: Story) -> None:
    story.tell(0, 1)


def ran_when_done(story: Story) -> None:
    story.run.start(0, 1)
    story.note("began", "0-0-a1")


def ran_when_given_up(story: Story) -> None:
    story.tell(2, 0, failed=True, _ng_failure_terminal=True)
    story.run.start(2, 1)
    story.note("began", "2-0-a1")


def answer_not_captured(story: Story) -> None:
    story.note("answer", "1-0", id="lost")


def answer_of_another(story: Story) -> None:
    story.call("1-0", "mixed", asked_by="0-0")


def record_without_a_call(story: Story) -> None:
    story.tell(2, 0, **story.record_of("2-0", "2-0:1"))


def record_with_the_capture_of_another(story: Story) -> None:
    story.tell(2, 0, **story.record_of("1-0", "1-0:1", "1-0:2"))


def link_that_is_wrong(story: Story) -> None:
    refs = [{"model_call_id": "call-2-0:2"}, {"model_call_id": "call-2-0:1"}]
    story.tell(2, 0, ng_agent_observations={"records": [{"model_calls": refs}]})


def not_started(story: Story) -> None:
    story.note("began", "2-0")


def started_twice(story: Story) -> None:
    story.run.start(0, 0)


def index_of_nothing(story: Story) -> None:
    written = story.run.record(2, 0, **story.record_of("2-0"), _ng_failure_class="worker_lost")
    story.run.start(2, 0)
    story.run.log(2, 0, type(written)("main", written.offset + 1, written.length, written.digest))


def index_of_another_row(story: Story) -> None:
    story.run.start(2, 0)
    written = story.run.record(2, 0, **story.record_of("2-0"), _ng_failure_class="worker_lost")
    story.run.log(1, 1, written)


def changed_record(story: Story) -> None:
    story.judge.look()
    data = story.run.paths.output.read_bytes()
    story.run.paths.output.write_bytes(data.replace(b"answers", b"ANSWERS"))


@pytest.mark.parametrize(
    ("tell", "found"),
    [
        (ran_twice, "ran more than once"),
        (torn_line, "a torn line"),
        (two_records, "a second record of 0-0"),
        (two_results, "recorded after its row was done"),
        (ran_when_done, "ran after its row was done"),
        (ran_when_given_up, "2-0-a1 ran after its row was done or given up"),
        (answer_not_captured, "lost was given to the agent and is not captured"),
        (answer_of_another, "1-0 holds mixed"),
        (record_without_a_call, "2-0: given"),
        (record_with_the_capture_of_another, "the record of 2-0 holds the capture of 1-0"),
        (link_that_is_wrong, "linked"),
        (not_started, "2-0 was not durable as started"),
        (started_twice, "an attempt was started twice"),
        (index_of_nothing, "where no record begins"),
        (index_of_another_row, "the index says"),
        (changed_record, "has changed"),
        (gap_without_a_death, "2-0: .*calls_missing"),
    ],
)
def test_each_fault_is_found(story: Story, tell: Callable[[Story], None], found: str) -> None:
    tell(story)
    with pytest.raises(AssertionError, match=found):
        story.judge.look()
