from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from gym_ray.settings.fields import HttpUrl, Replicas


@pytest.mark.parametrize(("given", "value"), [(1, 1), ("3", 3), (8, 8), ("per_node", "per_node")])
def test_replicas(given: object, value: object) -> None:
    assert TypeAdapter(Replicas).validate_python(given) == value


@pytest.mark.parametrize("given", [0, -1, True, 1.5, "0", "-1", "two", "", None, "\u0663"])
def test_no_replicas(given: object) -> None:
    with pytest.raises(ValidationError, match="should be a whole number from 1 up, or per_node"):
        TypeAdapter(Replicas).validate_python(given)


@pytest.mark.parametrize("given", ["http://h", "https://h:8000/v1", "http://[::1]:80/v1", "http://10.0.0.1/a?b=c"])
def test_urls(given: str) -> None:
    assert TypeAdapter(HttpUrl).validate_python(given) == given


@pytest.mark.parametrize(
    "given",
    [
        "",
        "h:80",
        "//h",
        "ftp://h",
        "http://",
        "http://h:port",
        "http://h:99999",
        "http://h:0",
        "http://[::1",
        "http://a b",
    ],
)
def test_no_urls(given: str) -> None:
    with pytest.raises(ValidationError, match="should be a URL such as"):
        TypeAdapter(HttpUrl).validate_python(given)


@pytest.mark.parametrize("given", ["http://me@h", "http://me:pw@h/v1", "http://:pw@h"])
def test_urls_with_credentials(given: str) -> None:
    with pytest.raises(ValidationError, match="should hold no user or password"):
        TypeAdapter(HttpUrl).validate_python(given)
