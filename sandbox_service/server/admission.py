"""Who runs next: a bounded queue, fair among clients, that refuses what it could not answer in time."""

import asyncio
import collections
import contextlib

_SMOOTHING = 0.1  # weight of the newest run in the mean
_FIRST_GUESS_S = 0.05


class Refused(Exception):
    """There is no room for a request now; it may be sent again.

    Attributes:
      reason: "full", "deadline" or "stopping".
      retry_after_s: seconds after which it has a chance.
    """

    def __init__(self, reason: str, message: str, retry_after_s: float):
        super().__init__(message)
        self.reason, self.retry_after_s = reason, retry_after_s


class Admission:
    """Hands out slots, in turn to each client that waits.

    Args:
      slots: what is handed out.
      queue: requests that may wait.
    """

    def __init__(self, slots, queue: int):
        self._free = list(slots)
        self._count, self._queue = len(self._free), queue
        self._waiting: dict[str, collections.deque[asyncio.Future]] = {}
        self.waiting = 0
        self.mean_run_s = _FIRST_GUESS_S
        self.stopping = False

    @property
    def busy(self) -> int:
        """Slots in use."""
        return self._count - len(self._free)

    def predicted_wait_s(self, extra: int = 0) -> float:
        """Seconds that a request which comes now would wait, with `extra` others before it."""
        if self._free and not extra:
            return 0.0
        return (self.waiting + extra + 1) * self.mean_run_s / self._count

    def observe(self, run_s: float):
        """Takes in how long a run held its slot."""
        self.mean_run_s += _SMOOTHING * (run_s - self.mean_run_s)

    def check(self, wait_s: float, requests: int = 1):
        """Decides on requests that would wait at most `wait_s` seconds.

        Raises:
          Refused: they would not be answered.
        """
        predicted = self.predicted_wait_s(requests - 1)
        if self.stopping:
            raise Refused("stopping", "the service is stopping", 1.0)
        if self.waiting + requests > self._queue + len(self._free):
            raise Refused("full", f"{self.waiting} requests wait already", predicted)
        if predicted > wait_s:
            message = f"the wait is about {predicted:.1f} s, the request allows {wait_s:.1f} s"
            raise Refused("deadline", message, predicted)

    @contextlib.asynccontextmanager
    async def slot(self, client: str, wait_s: float):
        """Waits for a slot and holds it.

        Raises:
          Refused: none became free in time.
        """
        slot = self._free.pop() if self._free else await self._wait(client, wait_s)
        try:
            yield slot
        finally:
            self._hand_on(slot)

    async def _wait(self, client: str, wait_s: float):
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, collections.deque()).append(turn)
        self.waiting += 1
        try:
            return await asyncio.wait_for(asyncio.shield(turn), wait_s)
        except BaseException as error:
            if turn.done() and not turn.cancelled() and not turn.exception():
                self._hand_on(turn.result())
            turn.cancel()
            if isinstance(error, TimeoutError):
                raise Refused("deadline", f"no slot became free in {wait_s:.1f} s", self.mean_run_s) from None
            raise
        finally:
            self.waiting -= 1

    def _hand_on(self, slot):
        """Gives a slot to the client whose turn it is."""
        while self._waiting:
            client = next(iter(self._waiting))
            turns = self._waiting.pop(client)
            while turns and turns[0].done():
                turns.popleft()
            if not turns:
                continue
            turns.popleft().set_result(slot)
            if turns:
                self._waiting[client] = turns  # behind all others
            return
        self._free.append(slot)

    def stop(self):
        """Refuses what waits and whatever comes."""
        self.stopping = True
        for turns in self._waiting.values():
            for turn in turns:
                if not turn.done():
                    turn.set_exception(Refused("stopping", "the service is stopping", 1.0))
        self._waiting.clear()
