"""What a step learns from its experience: targets, then one optimiser update a mini-batch."""

import jax
from ml_collections import ConfigDict

from taorl_jax.training.experience import Group
from taorl_jax.training.learner import Learner
from taorl_jax.training.targets import Targets, make_targets
from taorl_jax.training.update import TrainState


def learn(
    groups: list[Group], learner: Learner, state: TrainState, config: ConfigDict, reference=None
) -> tuple[TrainState, Targets, dict[str, float], list[bool]]:
    """Makes the updates of one step; `state` is donated, `reference` is as in `make_targets`.

    Returns:
      (state, targets, metrics, skipped): the metrics are those of the targets and, as `train/`, the means
      over the updates; `train/updates` says how many there were. `skipped` says of each update whether its
      gradient was not finite.
    """
    targets = make_targets(groups, learner, state.params, config, reference)
    updates = []
    for minibatch in targets.minibatches:
        state, update_metrics = learner.update(state, minibatch.packed, minibatch.layout.micro_batches)
        updates.append(update_metrics)
    updates = jax.device_get(updates)
    skipped = [bool(update["skipped_updates"]) for update in updates]
    return state, targets, targets.metrics | _mean_over_updates(updates), skipped


def _mean_over_updates(updates: list[dict]) -> dict[str, float]:
    names = updates[0] if updates else ()
    means = {f"train/{name}": float(sum(u[name] for u in updates) / len(updates)) for name in names}
    return means | {"train/updates": len(updates)}
