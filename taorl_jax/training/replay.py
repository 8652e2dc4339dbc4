"""A recorded step's update, made again from its file and the policy that sampled it."""

import contextlib
import pathlib

from ml_collections import ConfigDict

from taorl_jax.errors import UserError
from taorl_jax.training.checkpoints import Checkpoints
from taorl_jax.training.learner import Learner, TrainState
from taorl_jax.training.learning import learn
from taorl_jax.training.recorded_step import read_step
from taorl_jax.training.run_directory import RunDirectory
from taorl_jax.training.setup import prepare_policy


def replay_step(config: ConfigDict, workdir: pathlib.Path, step: int) -> dict[str, float]:
    """The metrics of the update of a run's step.

    Args:
      config: of the update; with the run's own the metrics are the run's own.
      workdir: of the run.
      step: whose experience the run recorded.

    Raises:
      UserError: the experience or the policy of the step is not on the disk.
    """
    run = RunDirectory(workdir, continued=True)
    recorded = read_step(run.recorded_step(step))
    setup = prepare_policy(config)
    learner = Learner(setup.model, setup.mesh, config)
    state = _policy_of(run, recorded.policy_step, learner, config)
    reference = learner.load_reference(config.policy.checkpoint) if config.loss.kl_coefficient else None
    _, _, metrics, _ = learn(recorded.groups, learner, state, config, reference)
    return metrics


def _policy_of(run, step, learner, config) -> TrainState:
    if step == 0:
        return learner.load(config.policy.checkpoint)
    if not (run.checkpoints / str(step)).is_dir():
        raise UserError(
            f"--workdir {run.path} has no checkpoint of step {step}, from which the update starts; keep more "
            "of them (checkpoint.every, checkpoint.keep) in the run"
        )
    with contextlib.closing(Checkpoints(run.checkpoints, keep=None)) as checkpoints:
        return checkpoints.restore(step, learner.abstract_state())[0]
