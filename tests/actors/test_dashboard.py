"""The dashboard against what our publishers really register: names, labels, and how each kind may be asked."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gym_ray.model_call_capture.exchanges.telemetry import CaptureTelemetry
from gym_ray.rollouts.run_standing import RunStanding
from gym_ray.testing.token_sinks import PlainTokenSink
from gym_ray.token_id_capture.call_capture import TokenCapture
from gym_ray.token_id_capture.external_staging import StagedCallCounts
from gym_ray.token_id_capture.staging import AsyncRolloutTokenCapture, MemoryStaging, RolloutTokenCapture

DASHBOARD = Path(__file__).parents[2] / "examples" / "deployments" / "grafana" / "gym-ray.json"
PREFIX = "ray_"  # what Ray puts before every name
NOT_SHOWN: frozenset[str] = frozenset()
"""Published metrics that the dashboard leaves out on purpose; none so far."""

METRIC = re.compile(PREFIX + r"(gym_ray_\w+)(?:\{([^}]*)\})?(\[)?")
MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
GROUPED = re.compile(r"\bby \(([^)]*)\)")
LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True)
class Published:
    kind: str
    tags: frozenset[str]


class Registry:
    """Takes the place of Ray's metric classes, and keeps what each is made with."""

    def __init__(self) -> None:
        self.metrics: dict[str, Published] = {}

    def kind(self, kind: str) -> Callable[..., Any]:
        registry = self

        class Metric:
            def __init__(self, name: str, description: str, *rest: Any) -> None:
                assert description.endswith("."), name
                registry.metrics[name] = Published(kind, frozenset(rest[-1]))

            def set_default_tags(self, tags: dict[str, str]) -> None:
                assert len(tags) == 1

        return Metric


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> dict[str, Published]:
    import gym_ray.actors
    from gym_ray.actors import publisher

    for module in pkgutil.iter_modules(gym_ray.actors.__path__):
        importlib.import_module(f"gym_ray.actors.{module.name}")
    registry = Registry()
    for kind in ("Counter", "Gauge", "Histogram"):
        monkeypatch.setattr(publisher, kind, registry.kind(kind))
    given = {
        "MetricsPublisher": CaptureTelemetry(),
        "TokenMetricsPublisher": TokenCapture(PlainTokenSink(), None),
        "StagingMetricsPublisher": StagedCallCounts(),
        "WorkerMetricsPublisher": AsyncRolloutTokenCapture(RolloutTokenCapture(MemoryStaging(), lambda: 1)),
        "RunMetricsPublisher": RunStanding,
    }
    classes = {cls.__name__: cls for cls in publisher.Publisher.__subclasses__()}
    assert classes.keys() == given.keys(), "a publisher is not looked at here"
    for name, cls in classes.items():
        cls(given[name], "name")  # type: ignore[arg-type]
    return registry.metrics


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    return found


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each query with its legend."""
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"]


def named(published: dict[str, Published], name: str) -> tuple[str, Published]:
    """Return the metric of ours that a name in a query is of."""
    base = re.sub(r"_(bucket|sum|count)\Z", "", name)
    if base in published and published[base].kind == "Histogram":
        return base, published[base]
    assert name in published, f"{name} is published by nobody"
    return name, published[name]


async def test_every_query_names_metrics_and_labels_that_are_published(
    published: dict[str, Published], dashboard: dict[str, Any]
) -> None:
    for expr, legend in queries(dashboard):
        (found,) = METRIC.finditer(expr)
        _, metric = named(published, found[1])
        labels = set(MATCHER.findall(found[2] or ""))
        assert labels <= metric.tags, expr
        by = {label.strip() for group in GROUPED.findall(expr) for label in group.split(",")}
        assert by - {"le"} <= metric.tags, expr
        assert set(LEGEND.findall(legend)) == by - {"le"}, f"{expr}: the legend tells its lines apart"
        assert expr.count("(") == expr.count(")")


async def test_every_kind_is_asked_as_it_must_be(published: dict[str, Published], dashboard: dict[str, Any]) -> None:
    for expr, _ in queries(dashboard):
        (found,) = METRIC.finditer(expr)
        _, metric = named(published, found[1])
        changing = re.search(r"\b(rate|increase)\(" + PREFIX, expr) is not None
        assert (metric.kind != "Gauge") == changing == (found[3] is not None), expr
        quantile = re.search(r"histogram_quantile\(0\.\d+, sum by \(le[,)]", expr) is not None
        assert (metric.kind == "Histogram") == quantile == found[1].endswith("_bucket"), expr


async def test_everything_that_is_published_is_shown_or_left_out_on_purpose(
    published: dict[str, Published], dashboard: dict[str, Any]
) -> None:
    shown = {named(published, found[1])[0] for expr, _ in queries(dashboard) for found in METRIC.finditer(expr)}
    assert published.keys() >= NOT_SHOWN
    assert published.keys() - NOT_SHOWN == shown
    assert all(not metric.tags & {"rollout_id", "attempt"} for metric in published.values())


async def test_variables_ask_for_labels_that_are_published(
    published: dict[str, Published], dashboard: dict[str, Any]
) -> None:
    source, *chosen = dashboard["templating"]["list"]
    assert (source["type"], source["name"], source["query"]) == ("datasource", "datasource", "prometheus")
    for variable in chosen:
        asked = re.fullmatch(r"label_values\(" + PREFIX + r"(\w+), (\w+)\)", variable["query"]["query"])
        assert asked is not None
        assert asked[2] == variable["name"]
        assert asked[2] in named(published, asked[1])[1].tags
    names = {variable["name"] for variable in chosen}
    used = {name for expr, _ in queries(dashboard) for name in re.findall(r"\$(\w+)", expr)}
    assert used - {"__rate_interval"} == names


def test_the_dashboard_can_be_imported_anywhere(dashboard: dict[str, Any]) -> None:
    assert dashboard["schemaVersion"] == 39
    assert dashboard["id"] is None
    assert dashboard["uid"] == "gym-ray"
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        assert 0 <= at["x"] <= at["x"] + at["w"] <= 24
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, f"{panel['title']} covers another panel"
        taken |= cells
    for panel in panels(dashboard):
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources), panel["title"]
        assert panel["description"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs) > 0
