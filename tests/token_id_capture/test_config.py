from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import CaptureError, SettingsError
from gym_ray.testing.storage_faults import LocklessCalls
from gym_ray.testing.token_sinks import PlainTokenSink
from gym_ray.testing.token_source import FakeTokenSource
from gym_ray.token_id_capture import sink as process
from gym_ray.token_id_capture.config import (
    TokenIdCaptureConfig,
    agent_takes_part,
    build_lineage_store,
    build_sink,
    build_source,
    build_token_capture,
    build_token_source,
    control_auth_token,
    read_token_capture,
)
from gym_ray.token_id_capture.exact_tokens import ExactTokens
from gym_ray.token_id_capture.resolution.memory_resolver import InMemoryLineageResolver
from gym_ray.token_id_capture.resolution.resolvers import FileLineageResolver
from gym_ray.token_id_capture.store import TokenCaptureStore
from gym_ray.token_id_capture.token_arrays import pack_log_probs, pack_token_ids

SINK = "gym_ray.testing.token_sinks:PlainTokenSink"
STORE = "gym_ray.token_id_capture.store:TokenCaptureStore"
LINEAGE = "gym_ray.token_id_capture.resolution.memory_resolver:InMemoryLineageResolver"


@pytest.fixture(autouse=True)
def nothing_installed() -> Iterator[None]:
    yield
    process.install_token_sink(None)
    process.install_token_source(None)
    process.install_lineage_store(None)


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def config(**members: Any) -> TokenIdCaptureConfig:
    return TokenIdCaptureConfig(**{"enabled": True, **members})


async def test_nothing_is_built_while_capture_is_off(tmp_path: Path) -> None:
    off = TokenIdCaptureConfig(sink="nocolon", lineage_store="nocolon", source="nocolon")
    assert build_token_capture(off, capture_dir=tmp_path) is None
    assert build_token_source(off, tmp_path) is None
    assert build_sink(off) is build_lineage_store(off) is build_source(off) is None
    assert off.dir_in_use(tmp_path) is None


async def test_files_in_the_capture_directory_are_the_default(tmp_path: Path) -> None:
    kept = build_token_capture(config(), capture_dir=tmp_path / "calls")
    source = build_token_source(config(), tmp_path / "calls")
    assert kept is not None
    assert source is not None
    assert isinstance(kept.sink, TokenCaptureStore)
    assert isinstance(kept.resolver, FileLineageResolver)
    call = kept.begin("r0", "c0")
    await call.resolve([{"role": "user", "content": "q"}])
    await call.intend()
    exact = ExactTokens(pack_token_ids([1]), pack_token_ids([2]), pack_log_probs([-0.5]))
    await call.commit({"choices": [{"message": {"role": "assistant", "content": "A"}}]}, exact)
    await kept.aclose()
    snapshot = await source.freeze("r0")
    await source.close()
    assert [entry.model_call_id for entry in snapshot.packed] == ["c0"]
    assert not snapshot.incomplete
    assert (tmp_path / "calls" / "r0.tokens.jsonl").exists()
    assert process.process_health() is kept.health


async def test_the_blocks_own_directory_wins(tmp_path: Path) -> None:
    kept = build_token_capture(config(dir=tmp_path / "tokens"), capture_dir=tmp_path / "calls")
    assert kept is not None
    assert isinstance(kept.sink, TokenCaptureStore)
    assert kept.sink.root == tmp_path / "tokens"
    await kept.aclose()
    assert not (tmp_path / "calls").exists()


async def test_classes_that_the_block_names_come_before_installed_ones(tmp_path: Path) -> None:
    installed = PlainTokenSink()
    process.install_token_sink(installed)
    process.install_lineage_store(InMemoryLineageResolver())
    named = config(sink=STORE, sink_kwargs={"root": str(tmp_path)}, lineage_store=LINEAGE)
    kept = build_token_capture(named, capture_dir=None)
    assert kept is not None
    assert isinstance(kept.sink, TokenCaptureStore)
    assert kept.resolver is not process.installed_lineage_store()
    await kept.aclose()
    assert installed.closed == 0


async def test_installed_parts_come_before_files_and_are_not_closed(tmp_path: Path) -> None:
    installed, lineage = PlainTokenSink(), InMemoryLineageResolver()
    process.install_token_sink(installed)
    with pytest.raises(SettingsError, match="no call behind the installed sink would find its parent"):
        build_token_capture(config(), capture_dir=tmp_path)
    process.install_lineage_store(lineage)
    kept = build_token_capture(config(), capture_dir=tmp_path)
    assert kept is not None
    assert (kept.sink, kept.resolver) == (installed, lineage)
    await kept.aclose()
    assert installed.closed == 0
    assert names_in(tmp_path) == []


async def test_a_named_sink_is_closed_with_its_capture() -> None:
    kept = build_token_capture(config(sink=SINK, allow_unresolved_continuations=True), capture_dir=None)
    assert kept is not None
    assert kept.resolver is None
    await kept.aclose()
    assert isinstance(kept.sink, PlainTokenSink)
    assert kept.sink.closed == 1


def test_a_directory_without_locks_is_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process.install_token_sink(TokenCaptureStore(tmp_path, calls=LocklessCalls()))
    with pytest.raises(CaptureError, match="cannot be locked here"):
        build_token_capture(config(allow_unresolved_continuations=True), capture_dir=tmp_path)
    process.install_token_sink(None)
    monkeypatch.setattr("gym_ray.token_id_capture.store.file_calls_for", lambda _root: LocklessCalls())
    with pytest.raises(CaptureError, match="cannot be locked here"):
        build_token_capture(config(), capture_dir=tmp_path)
    with pytest.raises(CaptureError, match="cannot be locked here"):
        build_token_source(config(), tmp_path)


async def test_capture_without_a_place_still_runs_where_nothing_is_rebuilt() -> None:
    kept = build_token_capture(config(rebuild_response=False), capture_dir=None)
    assert kept is not None
    assert (kept.sink, kept.resolver) == (None, None)
    assert build_token_source(config(rebuild_response=False), None) is None
    await kept.aclose()


async def test_what_is_likely_not_meant_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    odd = config(sink=SINK, dir=tmp_path, allow_unresolved_continuations=True)
    kept = build_token_capture(odd, capture_dir=None)
    assert kept is not None
    await kept.aclose()
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "dir is not used" in caplog.text


async def test_options_of_the_block_reach_the_calls(tmp_path: Path) -> None:
    kept = build_token_capture(config(delta_records=False, on_unproven_prefix="fail"), capture_dir=tmp_path)
    assert kept is not None
    context = kept.begin("r0", "c0").context
    assert (context.delta_records, context.fail_unproven_prefix) == (False, True)
    await kept.aclose()


async def test_several_processes_need_a_lineage_store_that_they_share(tmp_path: Path) -> None:
    alone = config(sink=SINK, lineage_store=LINEAGE)
    with pytest.raises(SettingsError, match="sees the calls of one process, and 2 serve the model"):
        build_token_capture(alone, capture_dir=None, workers=2)
    shared = build_token_capture(config(), capture_dir=tmp_path, workers=2)
    assert shared is not None
    await shared.aclose()


def test_where_workers_keep_the_tokens_nothing_is_captured_here() -> None:
    assert build_token_capture(config(external_staging=True, rebuild_response=False), capture_dir=None) is None


async def test_a_named_source_comes_before_an_installed_one_and_that_before_files(tmp_path: Path) -> None:
    installed = FakeTokenSource()
    process.install_token_source(installed)
    borrowed = build_token_source(config(), tmp_path)
    assert borrowed is not None
    await borrowed.freeze("r0")
    assert await borrowed.drop("r0", snapshot_id="snap", version=7)
    assert (installed.froze, installed.dropped) == (["r0"], [("r0", "snap", 7)])
    await borrowed.close()
    named = build_token_source(config(source=STORE, source_kwargs={"root": tmp_path}), None)
    assert isinstance(named, TokenCaptureStore)
    await named.close()


async def test_an_installed_source_is_left_open() -> None:
    class _Counting(FakeTokenSource):
        closed = 0

        async def close(self) -> None:
            self.closed += 1

    installed = _Counting()
    process.install_token_source(installed)
    borrowed = build_token_source(config(), None)
    assert borrowed is not None
    await borrowed.close()
    assert installed.closed == 0


def test_rebuilding_from_a_sink_that_nobody_can_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"token_id_capture\.source: is not set, so that responses cannot"):
        build_token_source(config(sink=SINK, lineage_store=LINEAGE), tmp_path)
    process.install_token_sink(PlainTokenSink())
    with pytest.raises(SettingsError, match=r"token_id_capture\.source"):
        build_token_source(config(), tmp_path)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nocolon", "'nocolon' names no class; write module.path:ClassName"),
        (":Class", "names no class"),
        ("json:", "names no class"),
        ("no.such.module:X", "no.such.module cannot be imported: ModuleNotFoundError"),
        ("json:Nope", "json has no class Nope"),
        ("json:__name__", "json has no class __name__"),
        ("json:JSONDecoder", "json:JSONDecoder lacks put, mark_incomplete, close"),
    ],
)
def test_what_cannot_be_loaded_is_named_with_its_key(target: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        build_sink(config(sink=target))
    assert caught.value.key == "token_id_capture.sink"


def test_no_message_shows_what_a_class_is_made_with() -> None:
    with pytest.raises(SettingsError) as caught:
        build_lineage_store(config(lineage_store=LINEAGE, lineage_store_kwargs={"password": "hunter22"}))
    assert caught.value.key == "token_id_capture.lineage_store_kwargs"
    assert "cannot be made: it takes no argument password; it takes has_evidence, " in str(caught.value)
    assert "hunter22" not in str(caught.value)


def test_whole_settings_are_read_with_what_is_installed() -> None:
    settings = {"token_id_capture": {"enabled": True}, "servers": {}}
    with pytest.raises(ValueError, match="nowhere to go"):
        read_token_capture(settings)
    process.install_token_sink(PlainTokenSink())
    process.install_lineage_store(InMemoryLineageResolver())
    assert read_token_capture(settings).token_id_capture.enabled


@pytest.mark.parametrize("server", [None, 5, {"responses_api_agents": 5}, {"responses_api_agents": {"impl": None}}])
def test_an_agent_that_says_nothing_takes_no_part(server: object) -> None:
    assert not agent_takes_part({"token_id_capture": {"enabled": True}, "a": server}, "a")


def test_any_implementation_of_an_agent_lets_it_take_part() -> None:
    options = {"responses_api_agents": {"one": {}, "two": {"token_id_capture": True}}}
    assert agent_takes_part({"token_id_capture": {"enabled": True}, "a": options}, "a")


@pytest.mark.parametrize("said", ["true", "false", 1, {}, None])
def test_only_true_lets_an_agent_take_part(said: object) -> None:
    """B129: a switch in quotes would train on calls that nobody meant to train on."""
    options = {"responses_api_agents": {"one": {"token_id_capture": said}}}
    assert not agent_takes_part({"token_id_capture": {"enabled": True}, "a": options}, "a")


IN_A_WORKER = """
from pathlib import Path
from gym_ray.token_id_capture.config import TokenIdCaptureConfig, build_token_capture, installed_token_sink

def told(capture):
    return type(capture.sink).__name__

directory = Path({directory!r})
named = TokenIdCaptureConfig(enabled=True, sink={sink!r}, allow_unresolved_continuations=True)
print(installed_token_sink(), told(build_token_capture(TokenIdCaptureConfig(enabled=True), capture_dir=directory)),
      told(build_token_capture(named, capture_dir=directory)))
"""


def test_another_process_knows_what_settings_name_and_not_what_was_installed_here(tmp_path: Path) -> None:
    """B136."""
    process.install_token_sink(PlainTokenSink())
    code = IN_A_WORKER.format(directory=str(tmp_path), sink=SINK)
    worker = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert worker.stdout.split() == ["None", "TokenCaptureStore", "PlainTokenSink"]


@pytest.mark.parametrize("environ", [{}, {"TOKEN": ""}])
def test_a_control_token_that_is_not_there_is_named(environ: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="variable TOKEN is not set or empty"):
        control_auth_token(config(control_auth_token_env="TOKEN"), environ)


def test_the_control_token_comes_from_the_named_variable() -> None:
    environ = {"NEMO_GYM_TOKEN_CAPTURE_CONTROL_TOKEN": "abcdef", "TOKEN": "ghijkl"}
    assert control_auth_token(config(), environ) == "abcdef"
    assert control_auth_token(config(control_auth_token_env="TOKEN"), environ) == "ghijkl"


def test_a_control_token_that_could_not_be_redacted_is_refused() -> None:
    with pytest.raises(
        SettingsError, match=r"the token in TOKEN has 5 characters, too few .*; use 6 or more"
    ) as caught:
        control_auth_token(config(control_auth_token_env="TOKEN"), {"TOKEN": "abcde"})
    assert "abcde" not in str(caught.value)
