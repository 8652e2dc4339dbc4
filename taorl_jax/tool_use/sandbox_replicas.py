"""Which of several sandbox services a request goes to: the least busy of those that seem to be well."""

import contextlib
import dataclasses
import itertools
import time

_FAULTS_TO_OPEN = 3  # in a row
_FIRST_REST_S, _LONGEST_REST_S = 1.0, 30.0


@dataclasses.dataclass
class Replica:
    """A service, and what we know of it (a circuit breaker).

    Attributes:
      url: its address.
      outstanding: our requests to it that are not answered.
      faults: faults of it in a row; an answer, whatever it says, ends the row.
      rests_until: time before which it is spared.
    """

    url: str
    outstanding: int = 0
    faults: int = 0
    rests_until: float = 0.0

    def answered(self):
        """Notes that it is well."""
        self.faults, self.rests_until = 0, 0.0

    def failed(self, now: float):
        """Notes a fault; after some in a row it is spared, for longer with each one that follows."""
        self.faults += 1
        if (more := self.faults - _FAULTS_TO_OPEN) >= 0:
            self.rests_until = now + min(_LONGEST_REST_S, _FIRST_REST_S * 2**more)


class Replicas:
    """The services of a client."""

    def __init__(self, urls):
        self._all = [Replica(url) for url in urls]
        self._turns = itertools.count()

    @contextlib.contextmanager
    def lend(self, avoid: str | None):
        """A replica for one request.

        The least busy that does not rest and is not `avoid`; in turn among equals. Where all rest, the one
        whose rest ends first: a request waits for no breaker, since its own patience bounds it.
        """
        replica = self._choose(avoid, time.monotonic())
        replica.outstanding += 1
        try:
            yield replica
        finally:
            replica.outstanding -= 1

    def _choose(self, avoid: str | None, now: float) -> Replica:
        turn = next(self._turns) % len(self._all)
        in_turn = self._all[turn:] + self._all[:turn]
        others = [replica for replica in in_turn if replica.url != avoid] or in_turn
        well = [replica for replica in others if replica.rests_until <= now]
        if well:
            return min(well, key=lambda replica: replica.outstanding)
        return min(others, key=lambda replica: replica.rests_until)
