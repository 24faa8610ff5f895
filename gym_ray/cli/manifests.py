"""Manifests of rollouts for commands: out of a ledger's directory, and out of the file that one was put into."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from gym_ray.cli.name_lists import some_of
from gym_ray.errors import CaptureError, InputError, RolloutRetiredError
from gym_ray.token_id_capture.staging import FileCaptureLedger, RolloutManifest
from gym_ray.token_id_capture.staging.ledger.retirement import LEDGER_SUFFIX

__all__ = ["ledger_manifest", "read_manifest"]

_REMEDY: Final = "pass what `gym-ray staging manifest LEDGER_DIR ROLLOUT_ID --output FILE` wrote"


def ledger_manifest(directory: Path, rollout_id: str) -> RolloutManifest:
    """Return all that a ledger's directory holds of a rollout. Blocks, changes nothing.

    Raises:
        CaptureError: There is no such directory or rollout, or it cannot be read; says what there is.
        RolloutIdError: The id cannot be one.
        RolloutRetiredError: The rollout is retired, and its rows were removed.
    """
    if not directory.is_dir():
        what = "is a file, not a directory" if directory.exists() else "no such directory"
        raise CaptureError(f"{directory}: {what}; name the token_id_capture.dir of a run with external_staging")
    try:
        manifest = asyncio.run(_manifest(directory, rollout_id))
    except RolloutRetiredError as error:
        raise RolloutRetiredError(f"{directory}: {error}; its calls cannot be named any more") from error
    if not manifest.records and not manifest.failures:
        raise CaptureError(f"{directory}: the ledger has no rollout {rollout_id}; {_known(directory)}")
    return manifest


async def _manifest(directory: Path, rollout_id: str) -> RolloutManifest:
    ledger = FileCaptureLedger(directory)
    try:
        return await ledger.manifest(rollout_id)
    finally:
        await ledger.close()


def _known(directory: Path) -> str:
    known = sorted(path.name.removesuffix(LEDGER_SUFFIX) for path in directory.glob(f"*{LEDGER_SUFFIX}"))
    if not known:
        return "it holds none at all: name the token_id_capture.dir of a run with external_staging"
    return f"there are {some_of(known)}"


def read_manifest(path: Path) -> RolloutManifest:
    """Return the manifest in a file.

    Raises:
        InputError: There is no such file, or it holds something else; one line that says what to pass.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise InputError(path, 0, "", f"there is no such file; {_REMEDY}") from error
    except OSError as error:
        raise InputError(path, 0, "", f"cannot be read: {error.strerror or error}; {_REMEDY}") from error
    if path.name.endswith(LEDGER_SUFFIX):
        raise InputError(path, 0, "", f"it is the ledger of a rollout, not its manifest; {_REMEDY}")
    try:
        return RolloutManifest.model_validate_json(data)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        at = ".".join(map(str, found["loc"]))
        where = f"{at}: " if at else ""
        problem = "it is no JSON document" if found["type"] == "json_invalid" else f"{where}{found['msg']}"
        raise InputError(path, 0, "", f"it is no manifest of a rollout ({problem}); {_REMEDY}") from None
