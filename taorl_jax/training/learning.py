"""What a step learns from its experience: targets, then one optimiser update a mini-batch."""

import jax
from ml_collections import ConfigDict

from taorl_jax.training.experience import Group
from taorl_jax.training.learner import Learner, TrainState
from taorl_jax.training.targets import Targets, make_targets


def learn(
    groups: list[Group], learner: Learner, state: TrainState, config: ConfigDict
) -> tuple[TrainState, Targets, dict[str, float]]:
    """Makes the updates of one step; `state` is donated.

    Returns:
      (state, targets, metrics): the metrics are those of the targets and, as `train/`, the means over the
      updates; `train/updates` says how many there were.
    """
    targets = make_targets(groups, learner, state.params, config)
    updates = []
    for minibatch in targets.minibatches:
        state, update_metrics = learner.update(state, minibatch.packed, minibatch.layout.micro_batches)
        updates.append(update_metrics)
    return state, targets, targets.metrics | _mean_over_updates(updates)


def _mean_over_updates(updates: list[dict]) -> dict[str, float]:
    fetched = jax.device_get(updates)
    names = fetched[0] if fetched else ()
    means = {f"train/{name}": float(sum(u[name] for u in fetched) / len(fetched)) for name in names}
    return means | {"train/updates": len(fetched)}
