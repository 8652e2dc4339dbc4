"""Held-out evaluation of a run's latest checkpoint, or of the policy that runs start from."""

import contextlib
import pathlib
import tempfile

from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from taorl_jax.distributed import hosts
from taorl_jax.distributed.accelerators import require_visible_accelerator
from taorl_jax.errors import UserError
from taorl_jax.evaluation.heldout import evaluate
from taorl_jax.reporting.summary import sample_table
from taorl_jax.rewards.math import MathJudge
from taorl_jax.rollout.scheduler import Scheduler
from taorl_jax.tool_use.sandbox import open_sandbox
from taorl_jax.training.checkpoints import Checkpoints
from taorl_jax.training.learner import Learner
from taorl_jax.training.loop import require_sandbox
from taorl_jax.training.setup import prepare


def evaluate_run(config: ConfigDict, workdir: str | None, console: Console) -> dict[str, float]:
    """Prints Avg@K, Pass@K and what goes with them; returns them by name.

    Raises:
      UserError: the workdir has no checkpoint, or a setting can't work.
    """
    require_visible_accelerator()
    setup = hosts.on_all(lambda: prepare(config))
    if not hosts.is_first():
        console = Console(quiet=True)
    learner = Learner(setup.model, setup.mesh, config)
    step, params = _load(config, workdir, learner)
    with contextlib.ExitStack() as stack:
        log = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())) / "sandbox.log"
        sandbox = hosts.on_all(lambda: stack.enter_context(open_sandbox(config.sandbox, log)))
        judge = hosts.on_all(lambda: stack.enter_context(MathJudge.from_config(config.reward)))
        scheduler = Scheduler(setup.engine, setup.tokenizer, sandbox.client, config)
        status = stack.enter_context(console.status("evaluating"))
        metrics, trajectories = evaluate(
            scheduler,
            learner.rollout_params(params),
            setup.heldout,
            judge,
            config,
            step,
            lambda done, total: status.update(f"evaluating: {done} of {total} episodes"),
        )
    require_sandbox(metrics, "eval", config)
    table = Table(title=f"step {step} of {workdir}" if workdir else f"{config.policy.checkpoint}")
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in metrics.items():
        table.add_row(name, f"{value:.4g}")
    console.print(sample_table(trajectories, setup.tokenizer.decode))
    console.print(table)
    return metrics


def _load(config, workdir, learner):
    """(step, parameters) to evaluate."""
    if workdir is None:
        return 0, learner.load(config.policy.checkpoint).params
    directory = pathlib.Path(workdir) / "checkpoints"
    if not directory.is_dir():
        raise UserError(f"--workdir {workdir} holds no checkpoints; train there first, or omit --workdir")
    with contextlib.closing(Checkpoints(directory, keep=None)) as checkpoints:
        step = checkpoints.latest_step()
        if step is None:
            raise UserError(f"--workdir {workdir} has no finished checkpoint yet")
        return step, checkpoints.restore_params(step, learner.abstract_state().params)
