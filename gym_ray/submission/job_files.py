"""The directory of a job: how it is laid out, written once, added to, and read from anywhere (D135).

    <output_path>/gym-job-<UTC stamp>-<6 hex>/
        gym-job.json               the record: what was submitted, and as which Ray jobs
        resolved-config.yaml       the document, filled in (owner only)
        <benchmark>/
            job.json               what it is, without anything secret
            arguments.json         what it is run with (owner only)
            status.json            how it stands, by its driver
            stop-requested         is there when it shall stop
            logs/driver.log        what its programs printed
            artifacts/             its records
            model-calls/           its captures, unless they were moved or are off

Secrets are in the two files that only their owner may read, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gym_ray import __version__, exact_json
from gym_ray.errors import StorageError, StorageExistsError
from gym_ray.storage.durable_files import OWNER_ONLY, make_directory, replace_file, sync_directory
from gym_ray.storage.local_calls import file_calls_for
from gym_ray.submission.arguments import ARGUMENTS, BenchmarkArguments, read_arguments
from gym_ray.submission.benchmark_names import JOB_RECORD, RESOLVED_CONFIG, name_problem
from gym_ray.submission.planning import CAPTURES, BenchmarkPlan, SubmitPlan
from gym_ray.submission.statuses import BenchmarkStatus, is_unix_time, read_status, write_status

__all__ = ["DRIVER_LOG", "JOB", "STOP", "BenchmarkJob", "JobFiles", "JobRecord", "read_job", "write_job"]

JOB = "job.json"
STOP = "stop-requested"
DRIVER_LOG = "logs/driver.log"
_READABLE = 0o644
SUBMISSION_STATES = ("planned", "submitted", "refused")


@dataclass(frozen=True, slots=True)
class BenchmarkJob:
    """A benchmark in the record of its job.

    Args:
        name: Its name.
        submission_id: Id of its Ray job, None while there is none.
        address: Where that was submitted.
        state: ``planned``, ``submitted``, or ``refused`` when the cluster did not take it. How it went after that is
            in its status.
        message: Why it was refused, "" else.
    """

    name: str
    submission_id: str | None = None
    address: str | None = None
    state: str = "planned"
    message: str = ""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What ``gym-job.json`` holds.

    Args:
        id: The job's id, which is its directory's name.
        created_at: Unix seconds.
        version: Version of the package that wrote it.
        benchmarks: Its benchmarks, in the document's order.
    """

    id: str
    created_at: float
    version: str
    benchmarks: tuple[BenchmarkJob, ...]


@dataclass(slots=True)
class JobFiles:
    """A job's directory. One process at a time changes its record: whoever submits.

    Args:
        directory: The directory.
        record: What ``gym-job.json`` holds.
    """

    directory: Path
    record: JobRecord

    def benchmark(self, name: str) -> Path:
        """Return the directory of a benchmark.

        Raises:
            StorageError: The job has no such benchmark.
        """
        known = [job.name for job in self.record.benchmarks]
        if name not in known:
            raise StorageError(f"{self.directory}: has no benchmark {name!r}; it has {', '.join(known)}")
        return self.directory / name

    def status(self, name: str) -> BenchmarkStatus:
        """Return how a benchmark stands.

        Raises:
            StorageError: The job has no such benchmark, or its status cannot be read.
        """
        return read_status(self.benchmark(name))

    def driver_log(self, name: str) -> Path:
        """Return where the output of a benchmark's programs is; the file need not exist yet."""
        return self.benchmark(name) / DRIVER_LOG

    def arguments(self, name: str) -> BenchmarkArguments:
        """Return what a benchmark is run with, secrets included.

        Raises:
            StorageError: The file cannot be read, or is damaged.
        """
        return read_arguments(self.benchmark(name))

    def record_submission(self, job: BenchmarkJob) -> None:
        """Replace what the record says of a benchmark; durable when it returns.

        Raises:
            StorageError: The job has no such benchmark, or the record could not be written.
        """
        self.benchmark(job.name)
        jobs = tuple(job if one.name == job.name else one for one in self.record.benchmarks)
        record = replace(self.record, benchmarks=jobs)
        _put(self.directory / JOB_RECORD, _json(asdict(record)), _READABLE)
        self.record = record

    def record_status(self, name: str, status: BenchmarkStatus) -> None:
        """Write a benchmark's status for it, where its driver never began.

        Raises:
            StorageError: It could not be written.
        """
        directory = self.benchmark(name)
        try:
            write_status(directory, status)
        except OSError as error:
            raise StorageError(f"{directory}: the status cannot be written: {error}") from error

    def request_stop(self, name: str, reason: str = "") -> None:
        """Ask a benchmark to stop in order; its driver sees it within seconds, on whatever node it is.

        Raises:
            StorageError: It could not be written.
        """
        _put(self.benchmark(name) / STOP, f"{reason}\n".encode(), _READABLE)

    def queue_again(self, name: str, *, resume: bool = True) -> None:
        """Make a benchmark ready for another driver: not asked to stop, queued, going on with what is there.

        The caller has made sure that no driver is alive.

        Raises:
            StorageError: A file could not be read or written.
        """
        directory = self.benchmark(name)
        if resume:
            _put(directory / ARGUMENTS, _json(self.arguments(name).resumed().to_json()), OWNER_ONLY)
        (directory / STOP).unlink(missing_ok=True)
        self.record_status(name, BenchmarkStatus())


def write_job(plan: SubmitPlan, *, created_at: float) -> JobFiles:
    """Create the directory of a job; when this returns, it is whole and durable.

    Args:
        plan: The job.
        created_at: Unix seconds.

    Raises:
        StorageExistsError: The directory exists.
        StorageError: It could not be written.
    """
    directory = plan.job_dir
    calls = file_calls_for(directory)
    try:
        make_directory(calls, directory.parent)
        _begin(directory)
        sync_directory(calls, str(directory.parent))
        _put(directory / RESOLVED_CONFIG, plan.submission.resolved(redact=False).encode(), OWNER_ONLY)
        for benchmark in plan.benchmarks:
            _write_benchmark(benchmark, directory.name, created_at)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{directory}: the job directory cannot be written: {error}") from error
    jobs = tuple(BenchmarkJob(benchmark.name) for benchmark in plan.benchmarks)
    record = JobRecord(directory.name, created_at, __version__, jobs)
    _put(directory / JOB_RECORD, _json(asdict(record)), _READABLE)  # last: its presence says that the rest is there
    return JobFiles(directory, record)


def _begin(directory: Path) -> None:
    try:
        directory.mkdir()
    except FileExistsError as error:
        raise StorageExistsError(f"{directory}: exists already; a job begins in a directory of its own") from error


def _write_benchmark(plan: BenchmarkPlan, job_id: str, created_at: float) -> None:
    calls = file_calls_for(plan.directory)
    for part in ("logs", "artifacts"):
        make_directory(calls, plan.directory / part)
    if plan.captures == str(plan.directory / CAPTURES):
        make_directory(calls, plan.directory / CAPTURES)
    told = {
        "job_id": job_id,
        "name": plan.name,
        "created_at": created_at,
        "output": str(plan.output) if plan.command is None else None,
        "captures": plan.captures,
        "kind": "eval run" if plan.command is None else "command",
        "prepares": plan.prepare is not None,
        "resumable": plan.resumable,
    }
    _put(plan.directory / JOB, _json(told), _READABLE)
    _put(plan.directory / ARGUMENTS, _json(BenchmarkArguments.of(plan).to_json()), OWNER_ONLY)
    write_status(plan.directory, BenchmarkStatus())


def read_job(directory: str | Path) -> JobFiles:
    """Return the files of a job.

    Raises:
        StorageError: There is no job, or its record is damaged; the message names the file and what is wrong.
    """
    path = Path(directory).absolute() / JOB_RECORD
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise StorageError(f"{path.parent}: is no job directory: there is no {JOB_RECORD}") from error
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror or error}") from error
    return JobFiles(path.parent, _record_of(exact_json.loads_object(data), path))


def _record_of(value: Mapping[str, Any] | None, path: Path) -> JobRecord:
    if value is None:
        raise StorageError(f"{path}: is damaged: no JSON object")
    try:
        jobs = tuple(_job_of(dict(job)) for job in value["benchmarks"])
        record = JobRecord(_text(value, "id"), value["created_at"], _text(value, "version"), jobs)
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{path}: is damaged: {error}: not what is written when a job is submitted") from error
    if not jobs or len({job.name for job in jobs}) < len(jobs):
        raise StorageError(f"{path}: is damaged: it names no benchmark, or one twice")
    if not is_unix_time(record.created_at):
        raise StorageError(f"{path}: is damaged: created_at is no time")
    return record


def _job_of(value: Mapping[str, Any]) -> BenchmarkJob:
    """Return a benchmark of a record; a name that leads out of the job's directory is damage, too.

    Raises:
        KeyError, TypeError, ValueError: It is none.
    """
    name, state = _text(value, "name"), _text(value, "state")
    if name_problem(name) or state not in SUBMISSION_STATES:
        raise ValueError(f"{name!r}, which is {state!r}, is no benchmark")
    for key in ("submission_id", "address"):
        if not isinstance(value[key], str | None):
            raise TypeError(f"{key} of {name}")
    return BenchmarkJob(name, value["submission_id"], value["address"], state, _text(value, "message"))


def _text(value: Mapping[str, Any], key: str) -> str:
    if not isinstance(value[key], str):
        raise TypeError(f"{key} is no text")
    return str(value[key])


def _json(value: Any) -> bytes:
    return exact_json.dumps(value) + b"\n"


def _put(path: Path, data: bytes, mode: int) -> None:
    try:
        replace_file(file_calls_for(path.parent), path, data, mode)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error}") from error
