"""The three outcomes of judging an answer."""

import dataclasses
import enum


class Outcome(enum.Enum):
    """UNKNOWN (verifier limit, sandbox outage) never enters a reward, a baseline or a pass rate."""

    RIGHT = "right"
    WRONG = "wrong"
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a judge said of one answer.

    Attributes:
      outcome: right, wrong or unknown.
      answer: the answer that was judged; None if there was none.
      reason: one short phrase for people.
    """

    outcome: Outcome
    answer: str | None
    reason: str
