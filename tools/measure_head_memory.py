"""Temporary memory of the loss' head at Qwen's vocabulary, by compiling it: nothing is run.

    python -m tools.measure_head_memory

MB of temporaries of the gradient of log-probs and entropies (151,936 x 1,536, bfloat16 products), compiled
for CPU. 1,400 of them are the table's gradient in float32 and its copy in bfloat16, whatever the tokens:

| chunk | 2,048 tokens | 8,192 tokens | 32,768 tokens |
| --- | --- | --- | --- |
| 128 | 1,543 | 1,619 | 1,805 |
| 256 | 1,660 | 1,736 | 1,962 |
| 512 | 1,895 | 1,971 | 2,273 |
| 1024 | 2,365 | 2,441 | 2,743 |
| 2048 | 5,159 | 3,990 | 4,293 |
| whole logits | 1,245 each | 4,979 each | 19,915 each |
"""

import jax
import jax.numpy as jnp

from taorl_jax.training.token_logprobs import token_logprobs

VOCABULARY, HIDDEN = 151_936, 1536
CHUNKS, LENGTHS = (128, 256, 512, 1024, 2048), (2048, 8192, 32_768)


def temporary_bytes(tokens: int, chunk: int) -> int:
    """Of the gradient with respect to hidden states and table."""

    def loss(table_VxE, hidden_1xTxE, tokens_1xT):
        values = token_logprobs(
            {"embedding": table_VxE}, hidden_1xTxE, tokens_1xT, tokens_1xT > 0, temperature=1.0, chunk=chunk
        )
        return sum(value.sum() for value in values)

    lowered = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(
        jax.ShapeDtypeStruct((VOCABULARY, HIDDEN), jnp.float32),
        jax.ShapeDtypeStruct((1, tokens, HIDDEN), jnp.bfloat16),
        jax.ShapeDtypeStruct((1, tokens), jnp.int32),
    )
    return lowered.compile().memory_analysis().temp_size_in_bytes


def main():
    """Prints the table: a line a chunk size, a column a number of tokens."""
    print("| chunk | " + " | ".join(f"{length:,} tokens" for length in LENGTHS) + " |")
    print("| --- " * (len(LENGTHS) + 1) + "|")
    for chunk in CHUNKS:
        sizes = (temporary_bytes(length, chunk) / 1e6 for length in LENGTHS)
        print(f"| {chunk} | " + " | ".join(f"{size:,.0f}" for size in sizes) + " |")
    print("| whole logits | " + " | ".join(f"{n * VOCABULARY * 4 / 1e6:,.0f} each" for n in LENGTHS) + " |")


if __name__ == "__main__":
    main()
