from __future__ import annotations

import pytest

from gym_ray.server_directory import Endpoint, ServerDirectory

DIRECTORY = ServerDirectory(
    models={"policy_model": [Endpoint("n1", "http://127.0.0.1:1"), Endpoint("n2", "http://127.0.0.1:2")]},
    resources={"mcqa": [Endpoint("n1", "http://127.0.0.1:3")]},
)


def test_a_replica_on_the_own_node_is_preferred() -> None:
    assert DIRECTORY.model_urls("n2", 0) == {"policy_model": "http://127.0.0.1:2"}
    assert DIRECTORY.model_urls("n2", 7) == {"policy_model": "http://127.0.0.1:2"}
    assert DIRECTORY.resource_urls("n2", 0) == {"mcqa": "http://127.0.0.1:3"}


def test_without_a_local_replica_turns_spread_over_all() -> None:
    assert [DIRECTORY.model_urls("n9", turn)["policy_model"][-1] for turn in range(4)] == ["1", "2", "1", "2"]


def test_it_survives_json() -> None:
    assert ServerDirectory.from_json(DIRECTORY.to_json()) == DIRECTORY


def test_a_lost_node_takes_its_replicas_and_leaves_the_names() -> None:
    left = DIRECTORY.without_nodes({"n1"})
    assert left.model_urls("n1", 0) == {"policy_model": "http://127.0.0.1:2"}
    assert left.resources == {"mcqa": []}
    assert left.resource_urls("n2", 0) == {}, "nobody is sent to a server that is not there"
    assert left.without_nodes({"n2"}).model_urls("n2", 0) == {}
    assert len(DIRECTORY.models["policy_model"]) == 2, "the directory that was asked is as it was"


def test_more_replicas_come_behind_those_that_are_there() -> None:
    more = DIRECTORY.without_nodes({"n1"}).with_models({"policy_model": [Endpoint("n3", "http://127.0.0.1:4")]})
    assert [item.node for item in more.models["policy_model"]] == ["n2", "n3"]
    assert more.model_urls("n3", 0) == {"policy_model": "http://127.0.0.1:4"}
    assert more.with_models({}) == more


@pytest.mark.parametrize("document", [{}, {"models": []}, {"models": {"a": [1]}, "resources": {}}])
def test_another_shape_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="server directory"):
        ServerDirectory.from_json(document)
