"""The whole of TAO-RL training, from problem to update, top to bottom."""

import contextlib
import dataclasses
import functools
import json
import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from taorl_jax.config import describe
from taorl_jax.data.pipeline import PromptStream, prompt_stream
from taorl_jax.distributed import hosts
from taorl_jax.distributed.accelerators import require_visible_accelerator
from taorl_jax.errors import Interrupted, UserError
from taorl_jax.evaluation.heldout import HeldOut, evaluate
from taorl_jax.reporting.curves import plot_curves
from taorl_jax.reporting.display import TrainingDisplay
from taorl_jax.reporting.summary import final_summary, sample_table
from taorl_jax.rewards.math import MathJudge
from taorl_jax.rollout.scheduler import Scheduler
from taorl_jax.rollout.trajectory import Trajectory
from taorl_jax.tool_use.result import SandboxFailure
from taorl_jax.tool_use.sandbox import open_sandbox
from taorl_jax.tool_use.sandbox_client import SandboxClient
from taorl_jax.training.checkpoints import CheckpointFailed, Checkpoints
from taorl_jax.training.durable_files import write_atomically
from taorl_jax.training.experience import Experience, collect
from taorl_jax.training.interrupt import StopRequest, stop_request
from taorl_jax.training.learner import Learner
from taorl_jax.training.learning import learn
from taorl_jax.training.metrics import MetricsWriter, read_metrics
from taorl_jax.training.recorded_step import RecordedStep, write_step
from taorl_jax.training.run_directory import RunDirectory, follow_run, open_run
from taorl_jax.training.setup import prepare
from taorl_jax.training.targets import Targets
from taorl_jax.training.trajectory_log import Episode, write_trajectories
from taorl_jax.training.update import TrainState

logger = logging.getLogger(__name__)


class NothingToLearn(UserError):
    """Several steps in a row left no group to train on."""


class NonFiniteGradient(UserError):
    """Several updates in a row had a gradient that is not finite; none of them changed the policy."""


@dataclasses.dataclass
class Progress:
    """Where a run stands; with the random keys it decides everything that follows.

    Attributes:
      state: parameters and optimiser after `step` steps.
      step: finished steps (rollout + update).
      stream_state: of the prompt stream at the end of that step.
      unwritten: metrics of that step while its row is not in `metrics.jsonl` yet, else None.
      empty_steps: steps in a row that had nothing to learn from.
      nonfinite: updates in a row that were skipped for a gradient that is not finite.
    """

    state: TrainState
    step: int
    stream_state: dict
    unwritten: dict | None
    empty_steps: int = 0
    nonfinite: int = 0


@dataclasses.dataclass(frozen=True)
class Parts:
    """What the loop works with; each is explained where it is defined."""

    config: ConfigDict
    run: RunDirectory
    learner: Learner
    scheduler: Scheduler
    stream: PromptStream
    heldout: HeldOut
    judge: MathJudge
    writer: MetricsWriter | None  # the first host's
    checkpoints: Checkpoints
    display: TrainingDisplay
    stop: StopRequest
    sandbox: SandboxClient
    decode: Callable[[list[int]], str]
    reference: Any = None  # parameters of the initial policy, where the loss refers to them

    def phase(self, name: str) -> Callable[[int, int], None]:
        """Shows the phase; returns a progress callback that lets a stop request through."""

        def progress(done: int, total: int):
            self.stop.check()
            self.display.phase(name, done, total)

        self.display.phase(name)
        return progress


def train(config: ConfigDict, workdir: str | None, console: Console):
    """Trains, or goes on training, and leaves everything in the run's directory.

    Args:
      config: the resolved config, locked.
      workdir: the run's directory; None for a fresh one.
      console: where to show progress.

    Raises:
      UserError: something that the user can mend; the last checkpoint stays on the disk.
    """
    require_visible_accelerator()
    setup = hosts.on_all(lambda: prepare(config))
    if not hosts.is_first():
        console = Console(quiet=True)
    with contextlib.ExitStack() as stack:
        run = _open_run(stack, workdir, config)
        stop = stack.enter_context(stop_request())
        if hosts.is_first():
            write_atomically(run.path / "sizes.json", (json.dumps(setup.sizes, indent=2) + "\n").encode())
        console.print(describe(config, setup.sizes), highlight=False, markup=False)
        sandbox = hosts.on_all(lambda: stack.enter_context(open_sandbox(config.sandbox, run.sandbox_log)))
        judge = hosts.on_all(lambda: stack.enter_context(MathJudge.from_config(config.reward)))
        checkpoints = stack.enter_context(
            contextlib.closing(Checkpoints(run.checkpoints, config.checkpoint.keep))
        )
        learner = Learner(setup.model, setup.mesh, config)
        stream = prompt_stream(
            setup.train_problems,
            setup.prompt_format,
            seed=config.seed,
            max_prompt_tokens=config.rollout.prompt_tokens,
        )
        reference = learner.load_reference(config.policy.checkpoint) if config.loss.kl_coefficient else None
        progress = _restore(checkpoints, learner, stream) or Progress(
            hosts.on_all(lambda: learner.load(config.policy.checkpoint)), 0, stream.state(), unwritten={}
        )
        _require_continuable(progress, run, config)
        written = progress.step if progress.unwritten is None else progress.step - 1
        writer = hosts.on_first(
            lambda: stack.enter_context(
                contextlib.closing(MetricsWriter(run.path, written if written >= 0 else None))
            )
        )
        display = TrainingDisplay(
            config.train.steps,
            sandbox=sandbox.description,
            log=run.log,
            workdir=run.path,
            history=read_metrics(run.metrics) if writer else (),
            console=console,
        )
        scheduler = Scheduler(setup.engine, setup.tokenizer, sandbox.client, config)
        parts = Parts(
            config, run, learner, scheduler, stream, setup.heldout, judge, writer, checkpoints, display, stop,
            sandbox.client, setup.tokenizer.decode, reference,
        )  # fmt: skip
        interrupted = None
        with display:
            try:
                samples = _loop(parts, progress)
            except Interrupted as signal:
                interrupted = signal
                _save(parts, progress)
            except CheckpointFailed:
                raise
            except UserError as error:
                _save(parts, progress)
                kept = f"Step {progress.step} is kept: the same" if progress.step else "The same"
                raise UserError(f"{error}. {kept} command with --workdir {run.path} goes on") from error
        hosts.on_first(lambda: writer.flush())
        checkpoints.wait()
        if writer:
            _report(parts, progress, console, interrupted, samples if interrupted is None else [])


def _open_run(stack: contextlib.ExitStack, workdir: str | None, config: ConfigDict) -> RunDirectory:
    """The run's folder, which the first host makes and holds."""
    name = f"{config.name}-{config.arm}"
    run = hosts.on_first(lambda: stack.enter_context(open_run(workdir, config, name)))
    path = hosts.all_gather(run and run.path.absolute())[0]
    return hosts.on_all(lambda: run or stack.enter_context(follow_run(path, hosts.index())))


def _loop(parts: Parts, progress: Progress) -> list[Trajectory]:
    """Steps until `train.steps`; returns the last evaluation's trajectories."""
    config, samples = parts.config, []
    while True:
        if progress.unwritten is not None:
            row = progress.unwritten
            if _due(config.eval.every, progress.step, config.train.steps):
                params = parts.learner.rollout_params(progress.state.params)
                evaluation, samples = evaluate(
                    parts.scheduler,
                    params,
                    parts.heldout,
                    parts.judge,
                    config,
                    progress.step,
                    parts.phase("evaluate"),
                )
                require_sandbox(evaluation, "eval", config)
                row = row | evaluation
            parts.display.step(progress.step, row)
            hosts.on_first(lambda row=row: parts.writer.write(progress.step, row))
            progress.unwritten = None
            if progress.step and _due(config.checkpoint.every, progress.step, config.train.steps):
                _save(parts, progress)
        if progress.step == config.train.steps:
            return samples

        params = parts.learner.rollout_params(progress.state.params)
        experience = collect(
            parts.scheduler, params, parts.stream, parts.judge, config, progress.step, parts.phase("rollout")
        )
        del params  # the update needs the memory
        require_sandbox(experience.metrics, "rollout", config)
        parts.phase("update")
        started = time.monotonic()
        progress.state, targets, update_metrics, skipped = learn(
            experience.groups, parts.learner, progress.state, config, parts.reference
        )
        metrics = experience.metrics | update_metrics
        for name, count in hosts.sums(parts.sandbox.stats()).items():
            metrics[f"timing/sandbox_{name}"] = count
        metrics["rollout/overlong_prompts"] = parts.stream.overlong  # since the start of the run
        metrics["timing/update_seconds"] = time.monotonic() - started
        progress.step += 1
        progress.stream_state = parts.stream.state()
        progress.unwritten = metrics
        hosts.on_first(functools.partial(_record, parts, progress.step, experience, targets))
        progress.empty_steps = 0 if targets.minibatches else progress.empty_steps + 1
        for not_finite in skipped:
            progress.nonfinite = progress.nonfinite + 1 if not_finite else 0
        _require_something_to_learn(parts, progress)
        _require_finite_gradients(parts, progress)


def _due(every: int, step: int, last: int) -> bool:
    return every > 0 and (step % every == 0 or step == last)


def _save(parts: Parts, progress: Progress):
    """Saves the last finished step, unless it is saved already; metrics up to it are on the disk before."""
    latest = parts.checkpoints.latest_step()
    if progress.step == 0 or (latest is not None and latest >= progress.step):
        return
    parts.display.phase("save")
    hosts.on_first(lambda: parts.writer.flush())
    host_state = {
        "stream": progress.stream_state,
        "unwritten": progress.unwritten,
        "empty_steps": progress.empty_steps,
        "nonfinite": progress.nonfinite,
        "seed": parts.config.seed,
    }
    parts.checkpoints.save(progress.step, progress.state, host_state)


def _restore(checkpoints: Checkpoints, learner: Learner, stream: PromptStream) -> Progress | None:
    """The latest checkpoint, with the stream put back to where it was; None if there is none."""
    step = checkpoints.latest_step()
    if step is None:
        return None
    state, host_state = checkpoints.restore(step, learner.abstract_state())
    stream.restore(host_state["stream"])
    logger.info("restored step %d", step)
    counts = {name: host_state[name] for name in ("empty_steps", "nonfinite")}
    return Progress(state, step, host_state["stream"], host_state["unwritten"], **counts)


def _require_continuable(progress: Progress, run: RunDirectory, config: ConfigDict):
    if progress.step > config.train.steps:
        raise UserError(
            f"--workdir {run.path} is at step {progress.step} already, "
            f"beyond train.steps={config.train.steps}"
        )


def require_sandbox(metrics: dict, prefix: str, config: ConfigDict):
    """Ends the run where the sandbox's faults would bias what is learned or reported."""
    dropped, episodes = metrics[f"{prefix}/dropped_by_sandbox"], metrics[f"{prefix}/episodes"]
    if dropped > config.sandbox.max_failed_share * episodes:
        raise SandboxFailure(
            f"the sandbox failed {dropped} of {episodes} episodes of one {prefix}, more than "
            f"sandbox.max_failed_share={config.sandbox.max_failed_share}; see sandbox.log"
        )


def _require_something_to_learn(parts: Parts, progress: Progress):
    if progress.empty_steps < parts.config.filter.max_empty_steps:
        return
    shares = ", ".join(
        f"{name.removeprefix('filter/')} {value:.0%}"
        for name, value in progress.unwritten.items()
        if name.startswith("filter/") and value
    )
    raise NothingToLearn(
        f"the filters left no group in {progress.empty_steps} steps in a row (last: {shares}). In a new "
        "workdir take easier or harder problems (data.train), more samples (rollout.samples), longer budgets "
        "(rollout.turn_tokens), or fewer filters"
    )


def _require_finite_gradients(parts: Parts, progress: Progress):
    if progress.nonfinite < parts.config.train.max_nonfinite:
        return
    raise NonFiniteGradient(
        f"the gradient was not finite in {progress.nonfinite} updates in a row, which changed nothing. In a "
        "new workdir lower train.learning_rate, or compute in float32 (policy.compute_dtype)"
    )


def _record(parts: Parts, step: int, experience: Experience, targets: Targets):
    """Writes what `log` asks for of a step."""
    log, last = parts.config.log, parts.config.train.steps
    if _due(log.trajectories_every, step, last):
        _log_trajectories(parts, step, experience, targets)
    if _due(log.replay_every, step, last):
        write_step(parts.run.recorded_step(step), RecordedStep(step - 1, experience.groups))


def _log_trajectories(parts: Parts, step: int, experience: Experience, targets: Targets):
    """Writes the first episodes of the step's groups, with what each token weighed in the loss."""
    episodes = []
    for group in experience.groups:
        for trajectory, advantage in zip(group.trajectories, group.advantages, strict=True):
            nothing = np.zeros(len(trajectory), np.float32)
            reshaped = targets.reshaped.get(trajectory, nothing)
            episodes.append(
                Episode(group.prompt.problem, trajectory, advantage * trajectory.loss_mask, reshaped)
            )
    chosen = episodes[: parts.config.log.trajectories]
    write_trajectories(parts.run.trajectories, step, chosen, parts.decode)


def _report(parts: Parts, progress: Progress, console: Console, interrupted, samples):
    """The picture, and what to say at the end."""
    rows = read_metrics(parts.run.metrics)
    if rows:
        config = parts.config
        plot_curves(rows, parts.run.curves, title=f"{config.name}, arm {config.arm}, seed {config.seed}")
    if interrupted is not None:
        console.print(
            f"{interrupted}: stopped after step {progress.step}; go on with --workdir {parts.run.path}",
            highlight=False,
        )
        return
    if samples:
        console.print(sample_table(samples, parts.decode))
    latest = parts.run.checkpoints / str(parts.checkpoints.latest_step())
    console.print(final_summary(rows, curves=parts.run.curves, checkpoint=latest))
