"""Opens the capture writer that fits a place: files under locks, segments of an object store, or a hosted writer."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from gym_ray.capture_location import CaptureLocation
from gym_ray.model_call_capture.backends import CaptureBackend, FileBackend
from gym_ray.model_call_capture.exchanges.redaction import Redactor
from gym_ray.model_call_capture.hosted.backend import HostedBackend
from gym_ray.model_call_capture.hosted.channel import RecordChannel
from gym_ray.model_call_capture.hosted.stores import RemoteStore, StoreChannel
from gym_ray.model_call_capture.segments.backend import SegmentBackend
from gym_ray.model_call_capture.writer import CaptureWriter

__all__ = ["HostedChannel", "open_capture_writer"]


class HostedChannel(RecordChannel, StoreChannel, Protocol):
    """The way to a process that writes captures: into a directory record by record, to an object store in segments."""


def open_capture_writer(
    location: CaptureLocation,
    *,
    server_name: str | None,
    url: str | None,
    run_token: str | None,
    capture_timeout_s: float,
    redactor: Redactor | None,
    local_dir: Path,
    channel: HostedChannel | None = None,
) -> CaptureWriter:
    """Return a started writer.

    Args:
        location: Where captures go.
        server_name: Name of the model server, written into every record.
        url: Root URL at which the server's quiesce route can be reached.
        run_token: What that route wants as bearer token.
        capture_timeout_s: How long an answer waits for its record before it is released and its rollout marked.
        redactor: Takes secrets out of every record.
        local_dir: Directory of this machine, with locks, that survives the process; open logs go there unless the
            captures are a directory of files.
        channel: A hosted writer that records everything instead; None to reach the place directly.

    Raises:
        SettingsError: Nothing that is installed can open the URL.
        CaptureError: The place cannot be used; names it.
    """
    backend: CaptureBackend
    if channel is not None and location.directory is None:
        stores = RemoteStore(channel, own=False), RemoteStore(channel, own=True)
        backend = SegmentBackend(*stores, local_dir=local_dir)
    elif channel is not None:
        backend = HostedBackend(channel, local_dir=local_dir)
    elif location.directory is not None:
        backend = FileBackend(location.directory)
    else:
        backend = SegmentBackend.at(location, local_dir=local_dir)
    writer = CaptureWriter(
        backend,
        server_name=server_name,
        url=url,
        run_token=run_token,
        capture_timeout_s=capture_timeout_s,
        redactor=redactor,
    )
    writer.start()
    return writer
