"""Classes that settings name: what they lack is said by name, and nothing of what they are made with is shown."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from gym_ray.errors import SettingsError
from gym_ray.token_id_capture.plug_ins import check_plug_in, load_plug_in

PARQUET = "gym_ray.token_id_capture.staging.parquet:"
KEY = "token_id_capture.lineage_store"


class Named:
    made = 0

    def __init__(self, place: str, *, depth: int = 1, **more: Any) -> None:
        Named.made += 1
        if more:
            raise SettingsError(place, "", "open sesame")

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("foreign_plug_ins")
    module.Named = Named
    monkeypatch.setitem(sys.modules, "foreign_plug_ins", module)


@pytest.mark.parametrize(
    ("target", "kwargs", "message"),
    [
        (PARQUET + "ParquetLineageResolver", {}, "cannot be made: it needs where; it was given none"),
        (PARQUET + "ParquetTokenSink", {"place": "hush"}, "cannot be made: it needs where; given: place"),
        (
            PARQUET + "ParquetTokenSource",
            {"where": "/x", "place": "hush"},
            "it takes no argument place; it takes max_pa",
        ),
        ("foreign_plug_ins:Named", {"depth": 2}, "cannot be made: it needs place; given: depth"),
    ],
)
def test_arguments_that_are_missing_or_unknown_are_named(target: str, kwargs: dict[str, Any], message: str) -> None:
    before = Named.made
    for check in (lambda: check_plug_in(KEY, target, kwargs), lambda: load_plug_in(KEY, target, kwargs, ())):
        with pytest.raises(SettingsError) as caught:
            check()
        assert f"settings: {KEY}_kwargs: {target} " in str(caught.value)
        assert message in str(caught.value)
        assert "hush" not in str(caught.value)
    assert Named.made == before


def test_what_our_own_classes_say_of_a_place_is_shown(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for where, options, message in (
        (str(tmp_path / "file"), None, "SettingsError: .*/file: is a file, not a directory"),
        ("s3://b/p", {"endpoint": "hush"}, "storage_options.endpoint: .* did you mean endpoint_url"),
    ):
        with pytest.raises(SettingsError, match=message) as caught:
            load_plug_in(KEY, PARQUET + "ParquetTokenSink", {"where": where, "storage_options": options}, ())
        assert "hush" not in str(caught.value)


def test_what_foreign_classes_say_may_hold_anything_and_is_not_shown() -> None:
    with pytest.raises(SettingsError, match="cannot be made with these: SettingsError; given: place, spell") as caught:
        load_plug_in(KEY, "foreign_plug_ins:Named", {"place": "p", "spell": "x"}, ())
    assert "sesame" not in str(caught.value)
    assert "sesame" in str(caught.value.__cause__)


def test_a_class_that_shows_no_signature_is_left_to_its_making(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_plug_in(KEY, "builtins:dict", {"anything": 1}) is dict
    made = load_plug_in(KEY, "foreign_plug_ins:Named", {"place": "p"}, ("close",))
    assert isinstance(made, Named)
