from __future__ import annotations

import pytest

from gym_ray.dialects.conversion.messages_images import image_source, image_url
from gym_ray.errors import UnsupportedRequestError

BASE64 = {"type": "base64", "media_type": "image/png", "data": "QUJD"}


def test_base64_goes_both_ways() -> None:
    url = image_url(BASE64, "p", remote=False)
    assert url == "data:image/png;base64,QUJD"
    assert image_source(url, "p", remote=False) == BASE64


@pytest.mark.parametrize(
    ("url", "media_type"),
    [
        ("data:image/jpg;base64,QUJD", "image/jpeg"),
        ("DATA:IMAGE/WebP;name=a.webp;BASE64,QUJD", "image/webp"),
    ],
)
def test_data_urls_are_read_as_clients_write_them(url: str, media_type: str) -> None:
    assert image_source(url, "p", remote=False) == {"type": "base64", "media_type": media_type, "data": "QUJD"}


def test_a_data_url_in_a_url_source_is_no_remote_image() -> None:
    source = {"type": "url", "url": "data:image/jpg;base64,QUJD"}
    assert image_url(source, "p", remote=False) == "data:image/jpeg;base64,QUJD"


def test_remote_images_pass_only_where_the_engine_fetches_them() -> None:
    url = "https://example.test/a.png"
    assert image_url({"type": "url", "url": url}, "p", remote=True) == url
    assert image_source(url, "p", remote=True) == {"type": "url", "url": url}
    with pytest.raises(UnsupportedRequestError, match=r"^p\.url: is a remote image") as caught:
        image_url({"type": "url", "url": url}, "p", remote=False)
    assert caught.value.status == 400
    with pytest.raises(UnsupportedRequestError, match=r"^p: is a remote image"):
        image_source(url, "p", remote=False)


@pytest.mark.parametrize(
    ("source", "status", "message"),
    [
        ({"type": "file", "file_id": "f"}, 400, r"p\.type: 'file' image sources"),
        ({}, 400, r"p\.type: null"),
        ({"type": "base64", "media_type": "image/tiff", "data": "x"}, 400, r"p\.media_type: 'image/tiff'"),
        ({"type": "base64", "data": "x"}, 422, r"p\.media_type: should be a string"),
        ({"type": "base64", "media_type": "image/png"}, 422, r"p\.data: should be a string"),
        ({"type": "url", "url": "file:///etc/passwd"}, 422, r"p\.url: is neither"),
        ({"type": "url", "url": "data:image/png,raw"}, 400, r"p\.url: is a data URL that is not base64"),
    ],
)
def test_other_sources_are_refused_by_name(source: dict[str, str], status: int, message: str) -> None:
    with pytest.raises(UnsupportedRequestError, match=message) as caught:
        image_url(source, "p", remote=True)
    assert caught.value.status == status
