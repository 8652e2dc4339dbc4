"""From problems to prompts: an endless, shuffled stream for training; a fixed list for evaluation.

The stream is a grain pipeline over a random-access source, so its whole position is one number. It is
never replayed to be restored, and nothing is read ahead: what was drawn is what was handed out.
"""

import dataclasses

import grain

from taorl_jax.data.problem import Problem
from taorl_jax.data.sources import DataError


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A drawn problem, ready for the policy.

    Attributes:
      draw: the running number of the draw. In a training stream it is unique over the whole run, also when
        the same problem returns in a later epoch; it identifies the prompt in random keys and records.
      problem: what was drawn.
      ids: token ids of the prompt, through the chat template.
    """

    draw: int
    problem: Problem
    ids: list[int]


class PromptStream:
    """Endless iterator of `Prompt`, with a state to save. Made by `prompt_stream`.

    Attributes:
      overlong: how many drawn problems were dropped because their prompt was too long.
    """

    def __init__(self, draws: grain.DatasetIterator, problems: int, max_prompt_tokens: int):
        self.overlong = 0
        self._draws = draws
        self._problems = problems
        self._limit = max_prompt_tokens

    def __iter__(self):
        return self

    def __next__(self) -> Prompt:
        """Raises DataError if every problem of the source is too long."""
        while True:
            prompt = next(self._draws)
            if len(prompt.ids) <= self._limit:
                return prompt
            self.overlong += 1
            if self.overlong == prompt.draw + 1 >= self._problems:
                raise _all_overlong(self._problems, self._limit)

    def state(self) -> dict:
        """What `restore` needs, JSON-able. It points at the draw after the last prompt handed out."""
        return {"grain": self._draws.get_state(), "overlong": self.overlong, "problems": self._problems}

    def restore(self, state: dict):
        """Continues with exactly the prompt that would have come next; refuses another source's state."""
        if state["problems"] != self._problems:
            raise DataError(
                f"the checkpoint was drawing from {state['problems']} problems, `data.train` now has "
                f"{self._problems}: restore the old data, or start a new workdir"
            )
        self._draws.set_state(state["grain"])
        self.overlong = state["overlong"]


def prompt_stream(source, tokenizer, *, seed: int, max_prompt_tokens: int) -> PromptStream:
    """Training prompts without end: each epoch draws every problem once, in an order of its own.

    Args:
      source: `len()` and `[index] -> Problem`.
      tokenizer: has `prompt_ids(text) -> list[int]`.
      seed: of the order; 0 <= seed < 2**32.
      max_prompt_tokens: longer prompts (in tokens) are dropped and counted.
    """
    dataset = (
        grain.MapDataset.source(source)
        .seed(seed)  # not shuffle(seed=): that adds epoch to seed, so seed 1's second epoch is seed 2's first
        .shuffle()
        .repeat()
        .map_with_index(lambda draw, problem: Prompt(draw, problem, tokenizer.prompt_ids(problem.text)))
    )
    # The problems are in memory already, and tokenising one takes less than handing it over between threads.
    in_this_thread = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    return PromptStream(iter(dataset.to_iter_dataset(in_this_thread)), len(source), max_prompt_tokens)


def heldout_prompts(source, tokenizer, max_prompt_tokens: int) -> tuple[list[Prompt], list[Problem]]:
    """The prompts of a held-out set in its order, and the problems whose prompt is too long.

    The latter were never attempted, and have to count as wrong: leaving them out would inflate the score.
    `draw` is the problem's place in the source.

    Raises:
      DataError: every problem is too long.
    """
    prompts, overlong = [], []
    for index in range(len(source)):
        problem = source[index]
        ids = tokenizer.prompt_ids(problem.text)
        if len(ids) <= max_prompt_tokens:
            prompts.append(Prompt(index, problem, ids))
        else:
            overlong.append(problem)
    if not prompts:
        raise _all_overlong(len(source), max_prompt_tokens)
    return prompts, overlong


def _all_overlong(problems: int, limit: int) -> DataError:
    return DataError(
        f"rollout.prompt_tokens={limit}: the prompts of all {problems} problems are longer; "
        "raise it, or check the data and the chat template"
    )
