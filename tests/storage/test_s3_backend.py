"""What S3 says that no server on this machine says: long listings, old uploads, conflicts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gym_ray.storage.objects.s3_backend import S3Backend


class Client:
    """Answers as it is told, page after page."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def split_path(self, path: str) -> tuple[str, str, None]:
        bucket, _, key = path.partition("/")
        return bucket, key, None

    def call_s3(self, method: str, **arguments: Any) -> Any:
        self.asked.append((method, arguments))
        return self.answers.pop(0) if self.answers else {}

    def pipe_file(self, path: str, data: bytes, **arguments: Any) -> None:
        self.asked.append((path, arguments))
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer


class ConflictError(Exception):
    response = {"Error": {"Code": "ConditionalRequestConflict"}}  # noqa: RUF012 - as botocore has it


def conflict() -> OSError:
    error = OSError("conflict")
    error.__cause__ = ConflictError()
    return error


def test_a_listing_of_many_pages_is_whole() -> None:
    client = Client(
        {"Contents": [{"Key": "p/1"}], "IsTruncated": True, "NextContinuationToken": "more"},
        {"IsTruncated": True, "NextContinuationToken": "last"},
        {"Contents": [{"Key": "p/2"}], "IsTruncated": False},
    )
    assert S3Backend(client).find("bucket/p/") == ["bucket/p/1", "bucket/p/2"]
    assert [asked.get("ContinuationToken") for _, asked in client.asked] == [None, "more", "last"]
    assert {asked["Prefix"] for _, asked in client.asked} == {"p/"}


def test_only_old_uploads_of_the_place_are_swept_from_every_page() -> None:
    now = datetime.now(UTC)
    old, young = now - timedelta(hours=2), now - timedelta(minutes=1)

    def uploads(*entries: tuple[str, datetime]) -> list[dict[str, Any]]:
        return [{"Key": key, "Initiated": begun, "UploadId": f"id {key}"} for key, begun in entries]

    client = Client(
        {
            "Uploads": uploads(("p/young", young), ("q/old", old)),
            "IsTruncated": True,
            "NextKeyMarker": "k",
            "NextUploadIdMarker": "u",
        },
        {"Uploads": uploads(("p/old", old))},
    )
    assert S3Backend(client).sweep("bucket/p/", 3600.0) == ["bucket/p/old"]
    assert client.asked[1][1].items() >= {"KeyMarker": "k", "UploadIdMarker": "u"}.items()
    assert client.asked[2:] == [
        ("abort_multipart_upload", {"Bucket": "bucket", "Key": "p/old", "UploadId": "id p/old"})
    ]


def test_a_put_that_met_another_is_repeated_and_not_for_ever() -> None:
    client = Client(conflict(), conflict(), None)
    S3Backend(client).put("bucket/x", b"1", exclusive=True, mark="m")
    assert client.asked == [("bucket/x", {"mode": "create", "Metadata": {"gymrayupload": "m"}})] * 3
    client = Client(*(conflict() for _ in range(9)))
    with pytest.raises(OSError, match="conflict"):
        S3Backend(client).put("bucket/x", b"1", exclusive=True, mark="m")
    assert len(client.asked) == 5
    client = Client(OSError("other"), None)
    with pytest.raises(OSError, match="other"):
        S3Backend(client).put("bucket/x", b"1", exclusive=False, mark="m")
