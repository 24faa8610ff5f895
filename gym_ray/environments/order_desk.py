"""An order desk: the answer is in a table that only a tool can read, so a rollout needs at least two model calls.

The reward needs both halves: the right status in the final text, and the tool really called in this session. A model
that guesses well scores nothing.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from gym_ray.environments.base import (
    Environment,
    Session,
    Tool,
    ToolError,
    UnknownSessionError,
    VerifyBody,
    VerifyReply,
)
from gym_ray.environments.response_text import message_texts

__all__ = ["Order", "OrderDeskEnvironment"]


class Order(BaseModel):
    """One order: an id, a status, and whatever else the row tells about it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    order_id: str = Field(min_length=1)
    status: str = Field(min_length=1)


class _SeedBody(BaseModel):
    model_config = ConfigDict(extra="ignore")

    orders: list[Order] | None = None


class _OrderBody(VerifyBody):
    order_id: str
    expected_status: str = Field(min_length=1)


@dataclass(slots=True)
class _Desk:
    """What one session sees and has done."""

    orders: Mapping[str, Order]
    looked_up: set[str] = field(default_factory=set)
    calls: int = 0


class OrderDeskEnvironment(Environment):
    """Answers ``look_up_order`` from the orders of the row, or else from its own table.

    Args:
        orders: Orders for rows that bring none.
        max_sessions: Sessions kept at once; beyond it the one that was idle longest is dropped, and a verify for it
            is refused rather than guessed.

    Raises:
        pydantic.ValidationError: An order lacks its id or status.
    """

    def __init__(self, orders: list[dict[str, Any]] | None = None, *, max_sessions: int = 10_000) -> None:
        self._table = _by_id(TypeAdapter(list[Order]).validate_python(orders or []))
        self._max_sessions = max_sessions
        self._desks: OrderedDict[str, _Desk] = OrderedDict()

    @property
    def tools(self) -> Mapping[str, Tool]:
        """``look_up_order``."""
        return {"look_up_order": self._look_up_order}

    @property
    def open_sessions(self) -> int:
        """How many sessions are kept."""
        return len(self._desks)

    async def seed_session(self, session: Session, body: dict[str, Any]) -> dict[str, Any]:
        """Open a desk with the row's ``orders``.

        Raises:
            pydantic.ValidationError: ``orders`` is not a list of orders.
        """
        given = _SeedBody.model_validate(body).orders
        self._desks[session.id] = _Desk(self._table if given is None else _by_id(given))
        while len(self._desks) > self._max_sessions:
            self._desks.popitem(last=False)
        return {}

    async def close_session(self, session: Session) -> None:
        """Forget the desk."""
        self._desks.pop(session.id, None)

    async def verify(self, session: Session, body: dict[str, Any]) -> dict[str, Any]:
        """Score the last message: 1 with the expected status in it and the order really looked up, else 0.

        The reply adds ``order_id``, ``expected_status``, ``status_found``, ``tool_called`` and ``tool_calls``.

        Raises:
            pydantic.ValidationError: ``order_id`` or ``expected_status`` is missing.
            UnknownSessionError: The session is not there.
        """
        request = _OrderBody.model_validate(body)
        desk = self._desk(session)
        texts = [text for text in message_texts(request.response) if text.strip()]
        wanted = rf"(?<!\w){re.escape(request.expected_status)}(?!\w)"
        status_found = bool(texts) and re.search(wanted, texts[-1], re.IGNORECASE) is not None
        tool_called = request.order_id in desk.looked_up
        extra = {
            "order_id": request.order_id,
            "expected_status": request.expected_status,
            "status_found": status_found,
            "tool_called": tool_called,
            "tool_calls": desk.calls,
        }
        return VerifyReply(1.0 if status_found and tool_called else 0.0, extra).as_json(request)

    async def _look_up_order(self, session: Session, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return one order of this session as JSON."""
        desk = self._desk(session)
        desk.calls += 1
        order_id = arguments.get("order_id")
        if not isinstance(order_id, str):
            raise ToolError("order_id: a text is needed, such as A-1001", 422)
        order = desk.orders.get(order_id.strip().upper())
        if order is None:
            raise ToolError(f"No order has the id {order_id}.", 404)
        desk.looked_up.add(order.order_id)
        return order.model_dump()

    def _desk(self, session: Session) -> _Desk:
        desk = self._desks.get(session.id)
        if desk is None:
            raise UnknownSessionError("this session is not open here; POST /seed_session first and keep its cookie")
        self._desks.move_to_end(session.id)
        return desk


def _by_id(orders: list[Order]) -> dict[str, Order]:
    return {order.order_id.upper(): order for order in orders}
