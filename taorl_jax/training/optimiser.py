"""AdamW with clipping and a schedule, from the `train` part of the config."""

import jax
import optax
from ml_collections import ConfigDict


def make_optimiser(train: ConfigDict) -> optax.GradientTransformation:
    """AdamW with global-norm clipping; the rate rises linearly, then stays or falls linearly to 0."""
    peak, warmup, decay = train.learning_rate, train.warmup_updates, train.decay_updates
    rise = optax.linear_schedule(peak / (warmup + 1), peak, warmup)
    fall = optax.linear_schedule(peak, 0.0, decay) if decay else optax.constant_schedule(peak)
    schedule = optax.join_schedules([rise, fall], [warmup])
    return optax.chain(
        optax.clip_by_global_norm(train.grad_clip),
        optax.adamw(
            schedule,
            b1=train.beta1,
            b2=train.beta2,
            weight_decay=train.weight_decay,
            mask=None if train.decay_norms else is_matrix,
        ),
    )


def is_matrix(params):
    """Marks the parameters other than norms and biases, by their names."""

    def matrix(path, _):
        name = path[-1].key
        return name != "scale" and not name.endswith("_bias")

    return jax.tree.map_with_path(matrix, params)
