"""What a problem is, wherever it comes from."""

import ast
import dataclasses
import json


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

    def arguments(self) -> list:
        """The arguments of a call. Raises ValueError: a line is no JSON value."""
        return [read_value(line) for line in self.input.splitlines() if line.strip()]

    def returned(self):
        """The value that a call must return. Raises ValueError: it is neither JSON nor a Python literal."""
        try:
            return read_value(self.output)
        except ValueError:
            pass
        try:
            return ast.literal_eval(self.output)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
            raise ValueError(f"{self.output[:80]!r} is no value: {error}") from error


def read_value(text: str):
    """A JSON value. Raises ValueError: it is none, or it is nested too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(f"{text[:80]!r}... is nested too deeply") from error


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
