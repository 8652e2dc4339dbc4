"""What the policy sees of a tool call."""

from typing import TYPE_CHECKING

from taorl_jax.tool_use.result import SandboxResult

if TYPE_CHECKING:
    from taorl_jax.models.tokenizer import Tokenizer

LABEL = "Code execution result: "
TIMEOUT = "interpreter timeout"


def is_valid_call(result: SandboxResult) -> bool:
    """Whether the call succeeded: exit code 0, whatever it wrote, and even if it wrote nothing."""
    return result.outcome == "ok"


def format_observation(result: SandboxResult, max_chars: int) -> str:
    """The text that answers a code block: a labelled line between newlines.

    It shows stdout, then, only if the run failed, why: `interpreter timeout`, or the last line of
    stderr, or the outcome's name if stderr is blank. Beyond max_chars characters the middle is cut.
    """
    parts = [result.stdout.removesuffix("\n")]
    if not is_valid_call(result):
        parts.append(_failure_line(result))
    payload = "\n".join(part for part in parts if part)
    return f"\n{LABEL}{_cut_middle(payload, max_chars)}\n"


def observation_ids(tokenizer: "Tokenizer", text: str, max_tokens: int) -> list[int]:
    """Token ids of an observation, split on its own and cut to its first max_tokens ids."""
    return tokenizer.encode(text)[:max_tokens]


def _failure_line(result: SandboxResult) -> str:
    if result.outcome == "timeout":
        return TIMEOUT
    lines = [line.rstrip() for line in result.stderr.split("\n") if line.strip()]
    return lines[-1] if lines else result.outcome.replace("_", " ")


def _cut_middle(text: str, max_chars: int) -> str:
    cut = len(text) - max_chars
    if cut <= 0:
        return text
    tail = max_chars // 2
    return f"{text[: max_chars - tail]}\n[{cut} characters left out]\n{text[len(text) - tail :]}"
