"""Several sources drawn from in given shares."""

import dataclasses

from taorl_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Sources and the share of draws that each gets; made for `prompt_stream`.

    Attributes:
      sources: each `len()` and `[index] -> Problem`.
      weights: positive, one a source; only their ratios matter.
    """

    sources: tuple
    weights: tuple[float, ...]

    def __len__(self) -> int:
        return sum(map(len, self.sources))

    def __getitem__(self, index):
        """Problem `index` of all sources one after the other."""
        for source in self.sources:
            if index < len(source):
                return source[index]
            index -= len(source)
        raise IndexError("no such problem")


def parse_mixture(text: str, setting: str) -> list[tuple[str, float]]:
    """(source, weight) pairs of a setting such as `a.jsonl:3, tasks:1`; a weight that is left out is 1.

    Raises:
      UserError: a source has no name, or a weight is not a positive number.
    """
    pairs = []
    for part in text.split(","):
        name, _, weight = part.strip().partition(":")
        try:
            value = float(weight or 1)
        except ValueError:
            value = 0.0
        if not name or not 0 < value < float("inf"):
            raise UserError(f"{setting}={text!r}: write sources as NAME or NAME:WEIGHT with a weight above 0")
        pairs.append((name, value))
    return pairs
