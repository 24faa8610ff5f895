"""Real processes, some of them nasty: when a command's run is over, nothing of it may be left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gym_ray.agents import command_process
from gym_ray.agents.command_guard import running_processes
from gym_ray.agents.command_process import CommandEnd, CommandLine, run_command
from gym_ray.testing.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands run on Linux only")


def line(tmp_path: Path, *arguments: str, mark: str = "", grace_s: float = 0.2, **environment: str) -> CommandLine:
    stdin = tmp_path / "input.json"
    stdin.write_bytes(b'{"input": "hi"}')
    mark = mark or f"{os.getpid()}-{tmp_path.name}"
    return CommandLine(arguments, environment, tmp_path, tmp_path / "private", stdin, grace_s, mark)


def python(tmp_path: Path, code: str, **options: Any) -> CommandLine:
    return line(tmp_path, sys.executable, "-I", "-S", "-c", code, **options)


async def run(command: CommandLine, timeout_s: float | None = None, max_output_bytes: int = 10_000) -> CommandEnd:
    async with asyncio.timeout(40):
        return await run_command(command, timeout_s=timeout_s, max_output_bytes=max_output_bytes)


def marked(command: CommandLine) -> list[int]:
    mark = f"GYM_RAY_COMMAND_ID={command.mark}".encode()
    return [process.pid for process in running_processes() if mark in command_process._environment(process)]


def alive(pid: int) -> bool:
    return any(process.pid == pid for process in running_processes())


async def test_a_command_reads_its_input_and_says_how_it_ended(tmp_path: Path) -> None:
    code = "import os, sys; sys.stdout.write(sys.stdin.read() + os.getcwd()); sys.stderr.write('oh'); sys.exit(3)"
    end = await run(python(tmp_path, code))
    assert end.stdout.kept.decode() == '{"input": "hi"}' + str(tmp_path)
    assert (end.exit_code, end.problem, end.timed_out, end.survivors) == (3, "", False, ())
    assert (end.stderr.kept, end.stderr.total, end.stderr.cut) == (b"oh", 2, False)


async def test_only_named_variables_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_API_KEY", "sk-not-for-commands")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("LANG", "C.UTF-8")
    end = await run(line(tmp_path, "env", MINE="1"))
    names = {text.partition("=")[0] for text in end.stdout.kept.decode().splitlines()}
    assert names - set(command_process.INHERITED_VARIABLES) == {"MINE", "GYM_RAY_COMMAND_ID"}
    assert {"PATH", "LANG"} <= names


async def test_signals_are_as_a_shell_would_leave_them(tmp_path: Path) -> None:
    end = await run(line(tmp_path, "grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"))
    masks = [int(text.split()[1], 16) for text in end.stdout.kept.decode().splitlines()]
    own = 0b11 << 31  # 32 and 33 are the C library's own, which starts programs with them ignored
    assert [mask & ~own for mask in masks] == [0, 0]


async def test_full_pipes_do_not_stop_a_command_and_the_end_is_kept(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "for number in range(300):\n"
        "    sys.stdout.write('o' * 9000 + f'{number:03}'); sys.stderr.write('e' * 9000 + f'{number:03}')\n"
    )
    end = await run(python(tmp_path, code), max_output_bytes=9010)
    for output, letter in ((end.stdout, "o"), (end.stderr, "e")):
        assert output.total == 300 * 9003
        assert output.kept.decode() == f"{letter * 4}298"[-7:] + letter * 9000 + "299"
        assert output.cut


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["no-such-program-here"], f"there is no such program on the PATH {os.environ['PATH']}"),
        (["/no/such/program"], "FileNotFoundError"),
        (["/etc"], "PermissionError"),
        (["a\0b"], "ValueError"),
    ],
)
async def test_what_cannot_start_says_so(tmp_path: Path, arguments: list[str], problem: str) -> None:
    end = await run(line(tmp_path, *arguments))
    assert end.problem.startswith(f"could not be started: {problem}")
    assert end.exit_code is None


async def test_a_working_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    command = line(tmp_path, "true")
    end = await run(CommandLine(command.arguments, {}, tmp_path / "absent", tmp_path, command.stdin, 0.2, "m"))
    assert str(tmp_path / "absent") in end.problem


async def test_a_command_that_is_killed_names_the_signal(tmp_path: Path) -> None:
    end = await run(python(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"))
    assert (end.exit_code, end.timed_out) == (-signal.SIGSEGV, False)


async def test_a_command_gets_its_grace_to_end_well(tmp_path: Path) -> None:
    code = 'trap "echo bye > bye; exit 0" TERM; echo up > up; while :; do sleep 0.1; done'
    task = asyncio.create_task(run(line(tmp_path, "sh", "-c", code, grace_s=20)))
    await until((tmp_path / "up").exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (tmp_path / "bye").read_text() == "bye\n"


IGNORES = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
DAEMON = (
    f"{IGNORES}"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        time.sleep(60)\n"
    "    os._exit(0)\n"
    "os.wait()\n"
)
NASTY = {
    "ignores SIGTERM": f"{IGNORES}time.sleep(60)",
    "leaves a daemon": f"{DAEMON}print('left')",
    "waits beside a daemon": f"{DAEMON}time.sleep(60)",
    "stops itself": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "terminates the guard": (
        f"{IGNORES}"
        "[os.kill(os.getppid(), number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]\n"
        "time.sleep(60)"
    ),
    "forks for ever": (
        f"{IGNORES}end = time.monotonic() + 30\nwhile time.monotonic() < end:\n    if os.fork():\n        os._exit(0)\n"
    ),
    "forks for ever into new sessions": (
        f"{IGNORES}end = time.monotonic() + 30\n"
        "while time.monotonic() < end:\n    if os.fork():\n        os._exit(0)\n    os.setsid()\n"
    ),
    "many children": (
        f"{IGNORES}for _ in range(20):\n    if os.fork() == 0:\n        os.setsid()\n        break\ntime.sleep(60)"
    ),
    "closes its outputs": f"{IGNORES}os.close(1); os.close(2); time.sleep(60)",
}


@pytest.mark.parametrize("code", NASTY.values(), ids=NASTY)
async def test_nothing_is_left_of_a_nasty_program(tmp_path: Path, code: str) -> None:
    command = python(tmp_path, code)
    end = await run(command, timeout_s=0.5)
    assert marked(command) == []
    assert (end.survivors, end.problem) == ((), "")
    assert end.timed_out is (end.exit_code is None)


async def test_a_daemon_without_an_environment_does_not_get_away(tmp_path: Path) -> None:
    daemon = "sh -c 'echo $$ > pid; trap \"\" TERM; sleep 60'"
    command = line(tmp_path, "sh", "-c", f"env -i setsid {daemon} & until test -s pid; do :; done")
    end = await run(command)
    assert (end.exit_code, end.survivors) == (0, ())
    assert not alive(int((tmp_path / "pid").read_text()))


async def test_a_program_that_kills_its_guard_gains_nothing(tmp_path: Path) -> None:
    command = python(tmp_path, f"{DAEMON}os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(60)")
    end = await run(command)
    assert "guards it was killed" in end.problem
    assert (end.exit_code, end.survivors) == (None, ())
    assert marked(command) == []


@pytest.mark.parametrize("times", [1, 3])
async def test_cancelling_ends_the_command_first(tmp_path: Path, times: int) -> None:
    command = python(tmp_path, f"{IGNORES}open('up', 'w').close()\ntime.sleep(60)")
    task = asyncio.create_task(run(command))
    await until((tmp_path / "up").exists)
    assert len(marked(command)) == 1
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert marked(command) == []


async def test_cancelling_before_the_command_has_begun_ends_it_too(tmp_path: Path) -> None:
    command = python(tmp_path, "import time; time.sleep(60)")
    task = asyncio.create_task(run(command))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert marked(command) == []


async def test_many_commands_run_at_the_same_time(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    count = 64
    code = 'exec 3<>gate; echo up > "up-$MINE"; read -r x <&3; echo "$MINE"'
    commands = [line(tmp_path, "sh", "-c", code, mark=f"{tmp_path.name}-{n}", MINE=str(n)) for n in range(count)]
    tasks = [asyncio.create_task(run(command)) for command in commands]
    await until(lambda: len(list(tmp_path.glob("up-*"))) == count)
    (tmp_path / "gate").write_bytes(b"\n" * count)  # one for each
    ends = await asyncio.gather(*tasks)
    assert [end.stdout.kept for end in ends] == [f"{n}\n".encode() for n in range(count)]
    assert {end.exit_code for end in ends} == {0}


async def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for program in ("true", "true", "absent-program"):
        await run(line(tmp_path, program))
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before)  # transports close their files in callbacks


WORKER = """
import asyncio, sys
from pathlib import Path
from gym_ray.agents.command_process import CommandLine, run_command

root = Path(sys.argv[1])
command = CommandLine((sys.executable, "-c", sys.argv[2]), {}, root, root / "private", root / "in", 0.2, sys.argv[3])
asyncio.run(run_command(command, timeout_s=None, max_output_bytes=100))
"""


async def test_a_killed_worker_takes_its_command_with_it(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "input.json").write_text("{}")
    command = line(tmp_path, "unused")
    (tmp_path / "in").write_text("{}")
    code = f"{DAEMON}open('up', 'w').close()\ntime.sleep(60)"
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path), code, command.mark])  # noqa: ASYNC220
    try:
        await until((tmp_path / "up").exists)
        assert len(marked(command)) == 2
    finally:
        worker.kill()
        worker.wait()
    await until(lambda: marked(command) == [])
    await until(lambda: not (tmp_path / "private").exists())


def test_a_loop_in_another_thread_will_do(tmp_path: Path) -> None:
    import threading

    import uvloop

    ends: list[CommandEnd] = []
    thread = threading.Thread(target=lambda: ends.append(uvloop.run(run(line(tmp_path, "cat")))))
    thread.start()
    thread.join(30)
    assert [end.stdout.kept for end in ends] == [b'{"input": "hi"}']


def test_the_end_of_the_loop_ends_the_command(tmp_path: Path) -> None:
    command = python(tmp_path, "open('up', 'w').close()\nimport time; time.sleep(60)")

    async def leave() -> None:
        task = asyncio.create_task(run(command))
        await until((tmp_path / "up").exists)
        assert not task.done()

    asyncio.run(leave())
    deadline = time.monotonic() + 20
    while marked(command) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert marked(command) == []
