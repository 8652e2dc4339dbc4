"""From groups to packed mini-batches: old log-probs, the entropy gate, reshaped advantages."""

import dataclasses
import functools

import jax
import numpy as np
from ml_collections import ConfigDict

from taorl_jax.algorithms.entropy_bonus import normalised_entropy, post_tool_gate, reshape_advantages
from taorl_jax.config import row_tokens
from taorl_jax.rollout.trajectory import Trajectory
from taorl_jax.training.experience import Group
from taorl_jax.training.learner import Learner
from taorl_jax.training.packing import Layout, Packed, lay_out, pack


@dataclasses.dataclass(frozen=True)
class Minibatch:
    """What one optimiser update reads."""

    layout: Layout
    packed: Packed


@dataclasses.dataclass(frozen=True)
class Targets:
    """A step's mini-batches, and for each kept episode its per-token arrays.

    Attributes:
      minibatches: those with something to learn from.
      reshaped: trajectory -> [T] float32 advantages as they enter the loss, 0 at tokens of others.
      metrics: of scoring, gate and packing.
    """

    minibatches: list[Minibatch]
    reshaped: dict[Trajectory, np.ndarray]
    metrics: dict[str, float]


def make_targets(
    groups: list[Group], learner: Learner, params, config: ConfigDict, reference=None
) -> Targets:
    """Scores the kept episodes under the policy as it is before the step's updates, and weighs their tokens.

    The mini-batches are consecutive runs of groups, as equal as they can be.

    Args:
      groups: of the step.
      learner: scores.
      params: the policy.
      config: of the run.
      reference: parameters that `loss.kl_coefficient` refers to; None: no such term.
    """
    packs = list(_pack_minibatches(groups, learner, config))
    kept = [trajectory for _, _, pairs in packs for trajectory, _ in pairs]
    advantages = [advantage for _, _, pairs in packs for _, advantage in pairs]
    minibatch_of = [i for i, (_, _, pairs) in enumerate(packs) for _ in pairs]
    if config.train.old_logprobs == "recomputed":
        scores = [learner.score(params, packed, layout.micro_batches) for layout, packed, _ in packs]
        logprobs, entropies = [], []
        for (layout, _, _), (scored_logprobs, scored_entropies) in zip(packs, scores, strict=True):
            logprobs += layout.gather(scored_logprobs)
            entropies += layout.gather(scored_entropies)
        metrics = agreement(kept, logprobs)
    else:
        logprobs, entropies = [t.logprobs for t in kept], [t.entropies for t in kept]
        metrics = {}
    reshaped, bonus_metrics = _reshape(kept, advantages, minibatch_of, entropies, config)

    minibatches, first = [], 0
    for layout, packed, pairs in packs:
        own = slice(first, first + len(pairs))
        first += len(pairs)
        columns = {
            "old_logprobs": layout.spread(logprobs[own], np.float32),
            "advantages": layout.spread(reshaped[own], np.float32),
        }
        if config.loss.importance_cap:
            columns["sampler_logprobs"] = layout.spread([t.logprobs for t, _ in pairs], np.float32)
        if reference is not None:
            columns["reference_logprobs"], _ = learner.score(reference, packed, layout.micro_batches)
        minibatches.append(Minibatch(layout, learner.place(packed.replace(**columns))))
    metrics |= bonus_metrics | _padding(minibatches)
    return Targets(minibatches, dict(zip(kept, reshaped, strict=True)), metrics)


def _pack_minibatches(groups, learner, config):
    """(layout, packed batch on the mesh, its (trajectory, advantage) pairs) of each mini-batch."""
    count = config.train.minibatches
    rows = config.rollout.prompts // count * config.rollout.samples
    for part in np.array_split(np.arange(len(groups)), count):
        pairs = [pair for i in part for pair in groups[i].kept()]
        if pairs:
            trajectories = [trajectory for trajectory, _ in pairs]
            lengths = [len(trajectory) for trajectory in trajectories]
            layout = lay_out(lengths, rows, row_tokens(config), config.train.micro_rows)
            packed = pack(trajectories, layout, config.loss.aggregation, config.rollout.context_tokens)
            yield layout, learner.place(packed), pairs


def _reshape(kept, advantages, minibatch_of, entropies, config):
    """Per-token reshaped advantages of every kept episode; one shape, however many there are."""
    shape = (config.rollout.prompts * config.rollout.samples, config.rollout.context_tokens)
    entropies_BxT, advantages_BxT = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    loss_BxT, post_tool_BxT = np.zeros(shape, bool), np.zeros(shape, bool)
    minibatch_B = np.zeros(shape[0], np.int32)
    for i, trajectory in enumerate(kept):
        n = len(trajectory)
        entropies_BxT[i, :n], advantages_BxT[i, :n] = entropies[i], advantages[i]
        loss_BxT[i, :n], post_tool_BxT[i, :n] = trajectory.loss_mask, trajectory.post_tool_mask
        minibatch_B[i] = minibatch_of[i]
    reshaped_BxT, gate_BxT, z_BxT = jax.device_get(
        _gated_advantages(
            config.bonus.top_share,
            config.bonus.coefficient,
            advantages_BxT * loss_BxT,
            entropies_BxT,
            loss_BxT,
            post_tool_BxT,
            minibatch_B,
        )
    )
    gated = max(int(gate_BxT.sum()), 1)
    metrics = {
        "train/gated_share": float(gate_BxT.sum() / max(loss_BxT.sum(), 1)),
        "train/gated_factor": float(1 + config.bonus.coefficient * (z_BxT * gate_BxT).sum() / gated),
    }
    return [reshaped_BxT[i, : len(t)] for i, t in enumerate(kept)], metrics


@functools.partial(jax.jit, static_argnums=0)
def _gated_advantages(top_share, coefficient, advantages, entropies, loss_mask, post_tool, minibatch):
    gate_BxT = post_tool_gate(entropies, post_tool, top_share)
    z_BxT = normalised_entropy(entropies, loss_mask, minibatch)
    return reshape_advantages(advantages, z_BxT, gate_BxT, coefficient), gate_BxT, z_BxT


def agreement(kept: list[Trajectory], logprobs: list[np.ndarray]) -> dict[str, float]:
    """How far the sampler's log-probs (nats) lie from the trainer's on the sampled tokens."""
    if not kept:
        return {}
    sampled = np.concatenate([t.logprobs[t.loss_mask] for t in kept]).astype(np.float64)
    scored = np.concatenate([x[t.loss_mask] for t, x in zip(kept, logprobs, strict=True)]).astype(np.float64)
    gap = np.abs(sampled - scored)
    spread = sampled.std() * scored.std()
    centred = (sampled - sampled.mean()) * (scored - scored.mean())
    return {
        "train/sampler_gap_mean": float(gap.mean()),
        "train/sampler_gap_max": float(gap.max()),
        "train/sampler_pearson": float(centred.mean() / spread) if spread > 0 else 1.0,
    }


def _padding(minibatches) -> dict[str, float]:
    if not minibatches:
        return {}
    return {"train/padding_share": float(np.mean([m.layout.padding_share for m in minibatches]))}
