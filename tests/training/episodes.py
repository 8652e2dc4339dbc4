"""Random episodes of two policy segments with an observation between, and what an update reads of them."""

import jax
import jax.numpy as jnp
import numpy as np

from taorl_jax.rollout.trajectory import Trajectory
from taorl_jax.training.packing import lay_out, pack

COUNT = 6


def make_episodes(vocabulary: int):
    """(trajectories of 5 to 30 tokens, advantages a token, old log-probs), COUNT of each."""
    rng = np.random.default_rng(0)
    trajectories, advantages, old = [], [], []
    for i in range(COUNT):
        t = Trajectory(i, 0, rng.integers(0, vocabulary, 3))
        for turn in range(2):
            n = int(rng.integers(1, 10))
            t.append_policy(rng.integers(0, vocabulary, n), np.full(n, -1.0), np.full(n, 1.0))
            if turn == 0:
                t.append_observation(rng.integers(0, vocabulary, rng.integers(1, 6)))
            t.turns += 1
        trajectories.append(t)
        advantages.append(rng.normal(size=len(t)).astype(np.float32))
        old.append(rng.normal(-5.5, 0.5, len(t)).astype(np.float32))
    return trajectories, advantages, old


def batch_of(
    episodes, micro_rows, row_tokens=192, order=range(COUNT), extra_rows=0, aggregation="token_mean"
):
    """(layout, packed batch) of the episodes in an order."""
    trajectories, advantages, old = ([column[i] for i in order] for column in episodes)
    layout = lay_out([len(t) for t in trajectories], COUNT + extra_rows, row_tokens, micro_rows)
    packed = pack(trajectories, layout, aggregation, constant=50).replace(
        advantages=layout.spread(advantages, np.float32), old_logprobs=layout.spread(old, np.float32)
    )
    return layout, jax.tree.map(jnp.asarray, packed)
