"""``cluster.yaml`` is checked against the schema of the Ray that is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.ray
CLUSTER_YAML = Path(__file__).parents[2] / "cluster.yaml"


def document() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(CLUSTER_YAML.read_text("utf-8"))
    return loaded


def test_cluster_yaml_is_valid_for_ray() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(document())
    validate_config(config)
    assert config["provider"]["type"] == "local"


def test_the_check_can_fail() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    wrong = document() | {"no_such_key": 1}
    with pytest.raises(Exception, match="no_such_key"):
        validate_config(prepare_config(wrong))


def test_every_start_keeps_token_auth_on_and_reports_off() -> None:
    starts = [
        line
        for key in ("head_start_ray_commands", "worker_start_ray_commands")
        for line in document()[key]
        if "ray start" in line
    ]
    assert len(starts) == 2
    for line in starts:
        assert "RAY_AUTH_MODE=token" in line
        assert "RAY_USAGE_STATS_ENABLED=0" in line
