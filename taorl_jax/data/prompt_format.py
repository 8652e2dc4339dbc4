"""What the policy is told around a problem, before the chat template."""

import dataclasses
import pathlib

from taorl_jax.errors import MissingFile, UserError
from taorl_jax.models.tokenizer import Tokenizer
from taorl_jax.tool_use.observation import LABEL

MARK = "{problem}"

# For policies that were not trained on a format of their own, such as the base models of the paper.
TOOL = f"""Work out the answer to the question below, one step after the other. While you think you may write
Python programs. Put each into a block that starts with ```python and ends with ```, and make it complete:
it runs alone, in a sandbox, and remembers nothing of earlier ones. What it prints comes back to you after
the words "{LABEL.strip()}", so print whatever you want to know.

There are two ways to hand in the answer. Either call final_answer in a program, as here:

```python
boxes, pens = 12, 7
final_answer(boxes * pens)
```

or write it as \\boxed{{answer}} in your last sentence.

User Question:
{MARK}"""
BUILT_IN = {"tool": TOOL, "plain": MARK}


@dataclasses.dataclass(frozen=True)
class PromptFormat:
    """A tokenizer with the text that goes around a problem.

    Attributes:
      tokenizer: brings the chat template.
      template: the user's message, with `{problem}` where the problem goes.
    """

    tokenizer: Tokenizer
    template: str

    def prompt_ids(self, problem_text: str) -> list[int]:
        """Token ids of the whole prompt."""
        return self.tokenizer.prompt_ids(self.template.replace(MARK, problem_text))


def read_template(name: str) -> str:
    """The template that `data.prompt` names: `tool`, `plain`, or a text file.

    Raises:
      MissingFile: there is no such file.
      UserError: the file does not hold `{problem}` exactly once.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    path = pathlib.Path(name)
    if not path.is_file():
        raise MissingFile(f"data.prompt: no such file: {name}; the built-in ones are {', '.join(BUILT_IN)}")
    template = path.read_text(encoding="utf-8")
    if template.count(MARK) != 1:
        raise UserError(f"data.prompt: {name} must hold {MARK} once, where the problem goes")
    return template
