"""Operations and memory traffic of the policy's programs, counted from its sizes.

XLA's own cost analysis counts the inside of a loop once, so it cannot be used for programs that are loops.
"""

import dataclasses

from ml_collections import ConfigDict

from taorl_jax.config import row_tokens
from taorl_jax.models.model_config import ModelConfig


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one run of a program, over all of its chips.

    Attributes:
      flops: operations that are executed.
      useful: of them, those of one forward and, in training, one backward: what MFU counts.
      bytes: that have to be moved from and to memory at the least.
    """

    flops: float
    useful: float
    bytes: float


def forward_flops(model: ModelConfig, tokens: int, context: float, logits: int) -> float:
    """Of one forward.

    Args:
      model: its sizes.
      tokens: that run through the layers.
      context: positions that a token attends to, on average.
      logits: tokens that are pushed through the unembedding.
    """
    embeddings = model.vocab_size * model.hidden * (1 if model.tied_embeddings else 2)
    layers = 2 * (model.parameters - embeddings) * tokens
    attention = 4 * model.layers * model.heads * model.head_dim * context * tokens
    return layers + attention + 2 * model.vocab_size * model.hidden * logits


def update_cost(model: ModelConfig, config: ConfigDict, micro_batches: int, chips: int) -> Cost:
    """Of one optimiser update over full rows, every token of which enters the loss."""
    tokens = micro_batches * config.train.micro_rows * row_tokens(config)
    forward = forward_flops(model, tokens, row_tokens(config) / 2, tokens)
    executed = {"none": 3, "dots": 3, "full": 4}[config.train.remat] * forward
    copies = chips / config.mesh.tensor
    # Gathered weights are read in each forward and twice in backward; gradients are added in float32.
    weights = micro_batches * model.parameters * (3 * 2 * copies + 8) + 28 * model.parameters
    activations = tokens * model.layers * 2 * (10 * model.hidden + 3 * model.mlp) * 3
    return Cost(executed, 3 * forward, weights + activations)


def score_cost(model: ModelConfig, config: ConfigDict, micro_batches: int, chips: int) -> Cost:
    """Of scoring the same."""
    tokens = micro_batches * config.train.micro_rows * row_tokens(config)
    forward = forward_flops(model, tokens, row_tokens(config) / 2, tokens)
    weights = micro_batches * model.parameters * 2 * chips / config.mesh.tensor
    activations = tokens * model.layers * 2 * (10 * model.hidden + 3 * model.mlp)
    return Cost(forward, forward, weights + activations)


def sampler_cost(model: ModelConfig, rows: int, tokens: int, calls: int, held: int, copies: int) -> Cost:
    """Of `calls` forwards of `rows` x `tokens` over caches that hold `held` positions a row, on one host.

    `copies` of the policy lie on the host; each reads its weights in every call.
    """
    flops = calls * forward_flops(model, rows * tokens, held, rows if tokens == 1 else 0)
    cache = rows * held * 4 * model.layers * model.kv_heads * model.head_dim
    return Cost(flops, flops, calls * (2 * model.parameters * copies + cache))
