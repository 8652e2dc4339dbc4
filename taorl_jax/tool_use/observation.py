"""What the policy sees of a tool call."""

from typing import TYPE_CHECKING

from taorl_jax.tool_use.result import SandboxResult

if TYPE_CHECKING:
    from taorl_jax.models.tokenizer import Tokenizer

LABEL = "Code execution result: "
TIMEOUT = "interpreter timeout"


def is_valid_call(result: SandboxResult, rule: str = "sane") -> bool:
    """Whether a call counts as successful.

    Args:
      result: of the call.
      rule: `rollout.valid_call`. "sane": exit code 0, whatever it wrote, and even if it wrote nothing.
        "released", as in the code that the paper's authors released: it wrote to stdout, and not to stderr.
    """
    if rule == "released":
        return bool(result.stdout) and not _released_stderr(result)
    return result.outcome == "ok"


def format_observation(result: SandboxResult, max_chars: int, rule: str = "sane") -> str:
    """The text that answers a code block: a labelled line between newlines.

    By the rule "sane" it shows stdout, then, only if the run failed, why: `interpreter timeout`, or the last
    line of stderr, or the outcome's name if stderr is blank. By "released" it shows the last line of stderr;
    without one stdout; without either nothing, or `interpreter timeout` if the run failed. Beyond max_chars
    characters the middle is cut.
    """
    if rule == "released":
        return f"\n{LABEL}{_released_payload(result, max_chars)}\n"
    parts = [result.stdout.removesuffix("\n")]
    if not is_valid_call(result):
        parts.append(_failure_line(result))
    payload = "\n".join(part for part in parts if part)
    return f"\n{LABEL}{_cut_middle(payload, max_chars)}\n"


def observation_ids(tokenizer: "Tokenizer", text: str, max_tokens: int) -> list[int]:
    """Token ids of an observation, split on its own; at most max_tokens of them.

    What is cut is cut before the newline that closes the observation: the policy goes on in a new line.
    """
    ids = tokenizer.encode(text)
    if len(ids) <= max_tokens:
        return ids
    newline = tokenizer.encode("\n")
    return (ids[: max(max_tokens - len(newline), 0)] + newline)[:max_tokens]


def _failure_line(result: SandboxResult) -> str:
    if result.outcome == "timeout":
        return TIMEOUT
    return _last_line(result.stderr) or result.outcome.replace("_", " ")


def _released_payload(result: SandboxResult, max_chars: int) -> str:
    if stderr := _released_stderr(result):
        return _last_line(stderr)
    if result.stdout:
        return _cut_middle(result.stdout.removesuffix("\n"), max_chars)
    return "" if result.outcome == "ok" else TIMEOUT


def _released_stderr(result: SandboxResult) -> str:
    """The released sandbox writes there that the time is over, and nothing else then."""
    return "Timeout" if result.outcome == "timeout" else result.stderr.strip()


def _last_line(text: str) -> str:
    """The last line that is not blank, or nothing."""
    lines = [line.rstrip() for line in text.split("\n") if line.strip()]
    return lines[-1] if lines else ""


def _cut_middle(text: str, max_chars: int) -> str:
    cut = len(text) - max_chars
    if cut <= 0:
        return text
    tail = max_chars // 2
    return f"{text[: max_chars - tail]}\n[{cut} characters left out]\n{text[len(text) - tail :]}"
