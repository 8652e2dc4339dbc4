"""What a problem is, wherever it comes from."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Problem:
    """One problem with its reference answer.

    Attributes:
      id: unique within its source.
      text: the problem as the policy reads it.
      answer: the reference answer.
      tier: a label of difficulty or origin for reports; may be empty.
    """

    id: str
    text: str
    answer: str
    tier: str
