"""The trajectory: the one record of an episode, built once, as its tokens are appended.

Every mask is derived from this record; nothing is ever recovered from text, pad ids or markers.
"""

import dataclasses
import enum

import numpy as np

from taorl_jax.rewards.verdict import Verdict
from taorl_jax.tool_use.result import SandboxResult


class Author(enum.IntEnum):
    """Who wrote a token."""

    PROMPT = 0
    POLICY = 1
    TOOL = 2


class EndReason(enum.Enum):
    """Why an episode ended."""

    ANSWERED = "answered"  # a stop id after a boxed answer, or `final_answer()` called
    VOID = "void"  # a stop id with neither a complete code block nor an answer in the turn
    TURN_LIMIT = "turn_limit"  # the last allowed turn ended with a tool call
    LENGTH = "length"  # a turn or the context ran out of tokens
    SANDBOX_FAILURE = "sandbox_failure"  # our fault: never scored, never trained on


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """One executed code block.

    Attributes:
      turn: index of the turn that wrote the code.
      code: the code as the policy wrote it (without what we inject).
      result: what the sandbox said.
      valid: whether the call counts as successful (`is_valid_call` by `rollout.valid_call`).
      observation: text appended to the context; empty if it did not fit.
      span: token positions [start, stop) of the turn that wrote the code.
    """

    turn: int
    code: str
    result: SandboxResult
    valid: bool
    observation: str
    span: tuple[int, int]


# The per-token columns of a record, and their types in memory.
COLUMNS = {
    "tokens": np.int32,
    "authors": np.int8,
    "turn_of": np.int32,
    "logprobs": np.float32,
    "entropies": np.float32,
}


class Trajectory:
    """Token ids exactly as sampled or inserted, and for each its author, turn, log-prob, entropy.

    `logprobs` (nats) and `entropies` (nats) are those of the sampling distribution
    softmax(logits / T); they are 0 at tokens that nobody sampled. Turn k covers the policy's k-th
    segment and the observation that answers it; the prompt belongs to turn 0.
    """

    def __init__(self, prompt_id: int, sample: int, prompt_ids):
        self.prompt_id = prompt_id
        self.sample = sample
        self.calls: list[ToolCall] = []
        self.turns = 0  # finished policy segments
        self.void = False  # some turn had neither a complete code block nor an answer
        self.end: EndReason | None = None
        self.answer: str | None = None  # by `reward.extraction`: last box of the policy, or final_answer()
        self.verdict: Verdict | None = None
        self._columns = {name: [] for name in COLUMNS}
        self._append(prompt_ids, Author.PROMPT)

    @classmethod
    def from_columns(cls, prompt_id: int, sample: int, columns: dict[str, np.ndarray]) -> "Trajectory":
        """A record with the per-token columns of another; what is not a column is as in a new one."""
        trajectory = cls(prompt_id, sample, [])
        for name, dtype in COLUMNS.items():
            trajectory._columns[name] = [np.asarray(columns[name], dtype)]
        return trajectory

    def _append(self, tokens, author, logprobs=None, entropies=None):
        count = len(tokens)
        zeros = np.zeros(count, np.float32)
        piece = {
            "tokens": tokens,
            "authors": np.full(count, author),
            "turn_of": np.full(count, self.turns),
            "logprobs": zeros if logprobs is None else logprobs,
            "entropies": zeros if entropies is None else entropies,
        }
        for name, dtype in COLUMNS.items():
            self._columns[name].append(np.asarray(piece[name], dtype))

    def append_policy(self, tokens, logprobs, entropies):
        """Appends sampled tokens; a segment may arrive in several pieces."""
        if not len(tokens) == len(logprobs) == len(entropies):
            raise ValueError(f"{len(tokens)} tokens, {len(logprobs)} log-probs, {len(entropies)} entropies")
        self._append(tokens, Author.POLICY, logprobs, entropies)

    def append_observation(self, tokens):
        """Appends the tokens of a tool's answer to the current turn."""
        self._append(tokens, Author.TOOL)

    def _column(self, name):
        pieces = self._columns[name]
        if len(pieces) > 1:
            pieces[:] = [np.concatenate(pieces)]
        return pieces[0]

    tokens = property(lambda self: self._column("tokens"))
    authors = property(lambda self: self._column("authors"))
    turn_of = property(lambda self: self._column("turn_of"))
    logprobs = property(lambda self: self._column("logprobs"))
    entropies = property(lambda self: self._column("entropies"))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return int((self.authors == Author.PROMPT).sum())

    @property
    def loss_mask(self) -> np.ndarray:
        """[T] bool: the tokens that the policy sampled."""
        return self.authors == Author.POLICY

    @property
    def post_tool_mask(self) -> np.ndarray:
        """[T] bool, M_post: the policy's tokens in turns that follow a valid call."""
        after = [call.turn + 1 for call in self.calls if call.valid]
        return self.loss_mask & np.isin(self.turn_of, after)

    @property
    def all_calls_failed(self) -> bool:
        """Criterion 1: it called the tool, and no call was valid."""
        return bool(self.calls) and not any(call.valid for call in self.calls)

    @property
    def overlong(self) -> bool:
        """It ran out of tokens."""
        return self.end is EndReason.LENGTH
