"""The manifest of a run: its name, and the digest of the rows that every other file of the run belongs to (D48)."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from gym_ray import exact_json
from gym_ray.errors import InputError, StorageError
from gym_ray.rollouts.run_paths import RunPaths
from gym_ray.storage.calls import FileCalls
from gym_ray.storage.posix import PosixStore

__all__ = ["RunManifest", "check_output", "publish_manifest", "read_manifest"]

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class RunManifest:
    """What a run says of itself.

    Attributes:
        run_id: 32 hexadecimal digits.
        begun_at: When it began, ISO 8601.
        input: The input that was expanded, "" when the run was found without a manifest.
        rows: Materialised rows.
        tasks: Distinct tasks, None where nobody counted them.
        materialized_sha256: Digest of the materialised file, hexadecimal.
        ledger_frames_lost: Damaged frames that a salvage took out of the ledger: each may have been any row's start.
        capture_dir: Where its model calls are captured, without credentials; "" where nobody said.
        output: Name of its main output, "" where nobody said.
    """

    run_id: str
    begun_at: str
    input: str
    rows: int
    tasks: int | None
    materialized_sha256: str
    ledger_frames_lost: int = 0
    capture_dir: str = ""
    output: str = ""


_REQUIRED = {"run_id": str, "rows": int, "materialized_sha256": str}


def publish_manifest(paths: RunPaths, manifest: RunManifest, *, calls: FileCalls | None = None) -> None:
    """Write or replace the manifest, whole and durable.

    Raises:
        StorageError: It cannot be written.
    """
    data = exact_json.dumps({"format": _FORMAT, **asdict(manifest)}) + b"\n"
    PosixStore(paths.directory, calls=calls).publish(paths.manifest.name, data)


def read_manifest(paths: RunPaths) -> RunManifest | None:
    """Return the run's manifest, None when there is none.

    Raises:
        InputError: It is damaged or of another version.
        StorageError: It cannot be read.
    """
    try:
        value = exact_json.loads_object(paths.manifest.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{paths.manifest}: cannot be read: {error}") from error
    if value is None:
        raise InputError(paths.manifest, 0, "", "is no JSON object; restore it, or start the run afresh")
    if value.get("format") != _FORMAT:
        raise InputError(
            paths.manifest, 0, "format", f"{value.get('format')!r} is not known here; this reads {_FORMAT}"
        )
    for name, kind in _REQUIRED.items():
        if not isinstance(value.get(name), kind):
            raise InputError(
                paths.manifest, 0, name, "is missing or damaged; restore the file, or start the run afresh"
            )
    tasks, lost = value.get("tasks"), value.get("ledger_frames_lost", 0)
    return RunManifest(
        value["run_id"],
        str(value.get("begun_at", "")),
        str(value.get("input", "")),
        value["rows"],
        tasks if isinstance(tasks, int) else None,
        value["materialized_sha256"],
        lost if isinstance(lost, int) else 0,
        str(value.get("capture_dir", "")),
        str(value.get("output", "")),
    )


def check_output(paths: RunPaths, manifest: RunManifest) -> None:
    """Refuse a run directory that belongs to another output: all names follow from what stands before the last dot.

    Raises:
        InputError: The other output is there; names it.
    """
    other = paths.output.with_name(manifest.output or paths.output.name)
    if other != paths.output and other.exists() and RunPaths(other).directory == paths.directory:
        problem = f"its files would bear the names of those of {other}; choose a name that differs before its last dot"
        raise InputError(paths.output, 0, "", problem)
