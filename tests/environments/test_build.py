from __future__ import annotations

import pytest

from gym_ray.environments import build_environment
from gym_ray.environments.mcqa import McqaEnvironment
from gym_ray.environments.order_desk import OrderDeskEnvironment
from gym_ray.errors import SettingsError
from gym_ray.settings import McqaOptions, OrderDeskOptions, ServerOptions, ServerSettings


def test_each_implementation_builds_its_environment() -> None:
    mcqa = build_environment(ServerSettings("m", "resources_servers", "mcqa", McqaOptions()))
    desk = build_environment(ServerSettings("d", "resources_servers", "order_desk", OrderDeskOptions()))
    assert isinstance(mcqa, McqaEnvironment)
    assert isinstance(desk, OrderDeskEnvironment)


def test_another_one_is_a_settings_error() -> None:
    server = ServerSettings("x", "resources_servers", "chess", ServerOptions())
    with pytest.raises(SettingsError, match="'chess' is not an environment; use mcqa or order_desk"):
        build_environment(server)
