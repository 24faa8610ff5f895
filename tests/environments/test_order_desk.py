from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gym_ray.environments.base import Session, ToolError, UnknownSessionError
from gym_ray.environments.order_desk import OrderDeskEnvironment
from gym_ray.testing.agent_servers import message_item

ORDERS = [{"order_id": "A-1001", "status": "shipped", "city": "Lyon"}, {"order_id": "A-1002", "status": "packed"}]
S = Session("s1")


def body(*texts: str, **row: Any) -> dict[str, Any]:
    return {
        "responses_create_params": {},
        "response": {"output": [message_item(text) for text in texts]},
        "order_id": "A-1001",
        "expected_status": "shipped",
        **row,
    }


async def seeded() -> OrderDeskEnvironment:
    environment = OrderDeskEnvironment()
    await environment.seed_session(S, {"orders": ORDERS, "other": 1})
    return environment


async def look_up(environment: OrderDeskEnvironment, order_id: Any, session: Session = S) -> Any:
    return await environment.tools["look_up_order"](session, {"order_id": order_id})


async def test_the_tool_returns_the_row_of_the_order() -> None:
    assert await look_up(await seeded(), " a-1001 ") == ORDERS[0]


@pytest.mark.parametrize(("order_id", "status"), [("A-9", 404), (3, 422), (None, 422)])
async def test_a_wrong_id_is_a_clear_tool_error(order_id: Any, status: int) -> None:
    with pytest.raises(ToolError) as error:
        await look_up(await seeded(), order_id)
    assert error.value.status == status
    assert str(error.value)


@pytest.mark.parametrize(
    ("looked_up", "texts", "reward", "found", "called"),
    [
        (["A-1001"], ["Order A-1001 is SHIPPED."], 1.0, True, True),
        ([], ["It is shipped."], 0.0, True, False),
        (["A-1002"], ["It is shipped."], 0.0, True, False),
        (["A-1001"], ["It is packed."], 0.0, False, True),
        (["A-1001"], ["It is unshipped."], 0.0, False, True),
        (["A-1001"], ["It was shipped, I think.", "No idea."], 0.0, False, True),
        (["A-1001"], ["Shipped.", " "], 1.0, True, True),
        (["A-1001"], [], 0.0, False, True),
    ],
)
async def test_reward_needs_the_status_and_the_call(
    looked_up: list[str], texts: list[str], reward: float, found: bool, called: bool
) -> None:
    environment = await seeded()
    for order_id in looked_up:
        await look_up(environment, order_id)
    reply = await environment.verify(S, body(*texts))
    assert (reply["reward"], reply["status_found"], reply["tool_called"]) == (reward, found, called)
    assert reply["tool_calls"] == len(looked_up)


async def test_sessions_are_apart_and_an_unknown_one_is_refused() -> None:
    environment = await seeded()
    await look_up(environment, "A-1001")
    await environment.seed_session(Session("s2"), {"orders": ORDERS})
    assert (await environment.verify(Session("s2"), body("shipped")))["reward"] == 0.0
    assert (await environment.verify(S, body("shipped")))["reward"] == 1.0
    await environment.close_session(S)
    await environment.close_session(S)
    with pytest.raises(UnknownSessionError, match="seed_session"):
        await environment.verify(S, body("shipped"))
    with pytest.raises(UnknownSessionError):
        await look_up(environment, "A-1001")


async def test_the_number_of_sessions_is_bounded_and_the_idle_one_goes() -> None:
    environment = OrderDeskEnvironment(ORDERS, max_sessions=2)
    for name in ("a", "b"):
        await environment.seed_session(Session(name), {})
    await look_up(environment, "A-1001", Session("a"))
    await environment.seed_session(Session("c"), {})
    assert environment.open_sessions == 2
    with pytest.raises(UnknownSessionError):
        await look_up(environment, "A-1001", Session("b"))
    assert (await environment.verify(Session("a"), body("shipped")))["reward"] == 1.0


async def test_wrong_data_is_named() -> None:
    with pytest.raises(ValidationError, match=r"orders\.0\.status"):
        await OrderDeskEnvironment().seed_session(S, {"orders": [{"order_id": "A-1"}]})
    with pytest.raises(ValidationError, match="expected_status"):
        await (await seeded()).verify(S, body("x", expected_status=None))
    with pytest.raises(ValidationError):
        OrderDeskEnvironment([{"status": "x"}])
