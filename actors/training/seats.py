"""The seats that all steps of a training loop share, and what happens to them when nodes come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gym_ray.actors.health import Watched
from gym_ray.actors.ray_port import RayPort
from gym_ray.actors.seats import Seat
from gym_ray.agents.context import ServerUrls

__all__ = ["SharedSeats"]


class SharedSeats(Watched):
    """Base of the host of steps: holds the seats, and the ports over them by the number of their step."""

    def __init__(self) -> None:
        super().__init__()
        self._workers: list[Seat] = []
        self._joiners: list[Seat] = []
        self._ports: dict[int, RayPort] = {}

    async def admit(self, workers: Sequence[Seat], joiners: Sequence[Seat]) -> None:
        """Use the seats of a node that joined as well."""
        self._workers.extend(workers)
        self._joiners.extend(joiners)
        for port in self._ports.values():
            port.admit(workers, joiners)

    async def part(self, nodes: Sequence[str]) -> None:
        """Give nothing more to seats on nodes that were lost."""
        for seat in (*self._workers, *self._joiners):
            seat.gone = seat.gone or seat.node_id in nodes

    async def use(self, urls: Mapping[str, ServerUrls]) -> None:
        """Send attempts that start later to these servers, by the name of their worker."""
        for seat in self._workers:
            seat.urls = urls.get(seat.name, seat.urls)
