"""Places for runs at once: as many as the workers can take, also when nodes come and go (D40).

It must never let more holders in than there are places; one that loses its place to a smaller number keeps it until it
is done, and nobody is cancelled for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType

__all__ = ["Slots"]


class Slots:
    """Lets holders in, in the order in which they ask, while there are places; use it with ``async with``.

    Args:
        places: Holders at once; at least 1.

    Attributes:
        held: Holders now.
    """

    def __init__(self, places: int) -> None:
        self.held = 0
        self._places = 1
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.resize(places)

    @property
    def places(self) -> int:
        """Holders at once."""
        return self._places

    def resize(self, places: int) -> None:
        """Have ``places`` from now on. Who waits is let in where there are more; where there are fewer, nobody leaves.

        Raises:
            ValueError: ``places`` is below 1; nothing changed.
        """
        if places < 1:
            raise ValueError(f"places: {places}; give a whole number from 1 up")
        self._places = places
        self._admit()

    async def __aenter__(self) -> None:
        if self.held < self._places:  # whoever waits was let in as places became free
            self.held += 1
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():  # it was let in and cancelled at the same moment
                self._give_back()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()

    def _give_back(self) -> None:
        self.held -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.held < self._places:
            future = self._waiting.popleft()
            if not future.done():  # one that was cancelled takes nobody's place
                self.held += 1
                future.set_result(None)
