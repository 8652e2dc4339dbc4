"""What a problem is, wherever it comes from."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class CodeTest:
    """One test of a program.

    Attributes:
      input: what stands on stdin; for a call: the arguments, one JSON value a line.
      output: what stdout must hold; for a call: the JSON value that must be returned.
      function: the function to call, a method of `Solution` if there is such a class; "" for a whole program.
    """

    input: str
    output: str
    function: str = ""


@dataclasses.dataclass(frozen=True)
class Problem:
    """One problem with its reference answer or its tests.

    Attributes:
      id: unique within its source.
      text: the problem as the policy reads it.
      answer: the reference answer; empty for a program.
      tier: a label of difficulty or origin for reports; may be empty.
      tests: what a program is judged by; empty for an answer.
    """

    id: str
    text: str
    answer: str
    tier: str
    tests: tuple[CodeTest, ...] = ()
