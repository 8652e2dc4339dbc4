"""Evaluation on benchmarks: the same engine and tool loop as in training, every sample kept on the disk."""

import concurrent.futures
import contextlib
import dataclasses
import functools
import pathlib

from ml_collections import ConfigDict
from rich.console import Console

from taorl_jax.data.pipeline import Prompt, heldout_prompts
from taorl_jax.distributed import hosts
from taorl_jax.distributed.accelerators import require_visible_accelerator
from taorl_jax.errors import UserError
from taorl_jax.evaluation.benchmarks import Benchmark, load_benchmark
from taorl_jax.evaluation.identity import claim, default_folder, read_claim
from taorl_jax.evaluation.policy import EvaluatedPolicy, find_policy
from taorl_jax.evaluation.report import Report, to_console, to_json, to_markdown
from taorl_jax.evaluation.samples import Sample, SampleLog, read_samples
from taorl_jax.evaluation.table import benchmark_table, differences, per_problem
from taorl_jax.rewards.code import judge_program
from taorl_jax.rewards.math import MathJudge
from taorl_jax.rewards.verdict import Outcome, Verdict
from taorl_jax.rollout.scheduler import EVALUATION, Draw, Scheduler
from taorl_jax.rollout.trajectory import Author, EndReason, Trajectory
from taorl_jax.tool_use.sandbox import open_sandbox
from taorl_jax.training.durable_files import write_atomically
from taorl_jax.training.learner import Learner
from taorl_jax.training.setup import Setup, prepare_policy

SAMPLES = "samples.jsonl"


def evaluate_benchmarks(
    config: ConfigDict,
    checkpoint: str | None,
    names: list[str],
    *,
    output: str | None,
    baseline: str | None,
    console: Console,
) -> Report:
    """Samples what is missing of `eval.samples` attempts at every problem, and prints and writes the tables.

    The folder holds `samples.jsonl`, `report.md` and `report.json`. The same command continues an evaluation
    that was stopped, and does no sampling at all for one that is complete. What the sandbox could not run is
    not kept; the next command tries it again.

    Args:
      config: with the budgets, `eval.samples` (K) and `eval.temperature`.
      checkpoint: see `find_policy`.
      names: benchmarks, see `load_benchmark`.
      output: folder; None: one named after the settings and the policy.
      baseline: folder of another evaluation, to compare with problem by problem; None: no comparison.
      console: where to show progress and the tables.

    Raises:
      UserError: naming the setting that can't work, and what would.
    """
    require_visible_accelerator()
    if hosts.count() > 1:
        raise UserError(
            "--benchmarks runs on one host: start it without --coordinator, with a mesh of its devices"
        )
    compared_with = _read_baseline(baseline)
    policy = find_policy(checkpoint, config)
    with config.unlocked():
        config.policy.checkpoint = policy.folder
    setup = prepare_policy(config)
    folder = pathlib.Path(output) if output else default_folder(config, policy)
    tasks = {}
    for name in names:
        benchmark = load_benchmark(name, config.benchmarks)
        prompt_format = setup.tokenizer if benchmark.programs else setup.prompt_format
        tasks[benchmark] = heldout_prompts(benchmark.problems, prompt_format, config.rollout.prompt_tokens)
    too_long = {benchmark: [problem.id for problem in tasks[benchmark][1]] for benchmark in tasks}
    claim(folder, config, policy, too_long)
    with SampleLog(folder / SAMPLES) as log, _Sampling(setup, policy, log, folder, console) as sampling:
        for benchmark, (prompts, _) in tasks.items():
            sampling.complete(benchmark, prompts)
        report = _report(
            f"{config.name}: {policy}", log.samples, too_long, config.eval.samples, compared_with
        )
    write_atomically(folder / "report.json", to_json(report).encode())
    write_atomically(folder / "report.md", to_markdown(report).encode())
    console.print(to_console(report))
    console.print(f"samples and tables: {folder}", highlight=False)
    return report


class _Sampling(contextlib.ExitStack):
    """Samples episodes and has them judged while others still run; builds nothing before it has to."""

    def __init__(self, setup: Setup, policy: EvaluatedPolicy, log: SampleLog, folder, console: Console):
        super().__init__()
        self._setup, self._policy, self._log, self._console = setup, policy, log, console
        self._folder, self._config = folder, setup.config

    def complete(self, benchmark: Benchmark, prompts: list[Prompt]):
        """Samples what the log lacks of a benchmark."""
        first, samples = benchmark.first_draw, self._config.eval.samples
        done = {
            (first + prompt.draw, sample)
            for prompt in prompts
            for sample in range(samples)
            if (benchmark.name, prompt.problem.id, sample) in self._log.samples
        }
        if len(done) == len(prompts) * samples:
            return
        prompts = [Prompt(first + prompt.draw, prompt.problem, prompt.ids) for prompt in prompts]
        problem_of = {prompt.draw: prompt.problem for prompt in prompts}
        pending = []
        with concurrent.futures.ThreadPoolExecutor(self._config.reward.workers) as judging:
            self._scheduler(benchmark.programs).run(
                self._params,
                prompts,
                samples,
                Draw(self._config.seed, EVALUATION, self._policy.step),
                temperature=self._config.eval.temperature,
                progress=functools.partial(self._show, benchmark.name, len(done)),
                done=done,
                on_finished=lambda trajectory: pending.append(
                    judging.submit(self._record, benchmark, problem_of[trajectory.prompt_id], trajectory)
                ),
            )
        for future in pending:
            future.result()

    def _record(self, benchmark, problem, trajectory):
        """Judges an episode and writes it down, unless the sandbox failed it."""
        if trajectory.end is EndReason.SANDBOX_FAILURE:
            return
        if benchmark.programs:
            program = trajectory.calls[0].code if trajectory.calls else None
            verdict = judge_program(self._sandbox.client, program, problem.tests).verdict
        else:
            verdict = self._judge.judge(problem.answer, trajectory.answer)
        self._log.append(_sample(benchmark.name, problem, trajectory, verdict, self._setup.tokenizer.decode))

    def _show(self, name, before, finished, wanted):
        rights = [
            s.outcome == Outcome.RIGHT.value for s in list(self._log.samples.values()) if s.benchmark == name
        ]
        share = f", {sum(rights) / len(rights):.1%} right so far" if rights else ""
        self._status.update(f"{name}: {before + finished} of {before + wanted} episodes{share}")

    @functools.cached_property
    def _status(self):
        return self.enter_context(self._console.status("evaluating"))

    @functools.cached_property
    def _sandbox(self):
        return self.enter_context(open_sandbox(self._config.sandbox, self._folder / "sandbox.log"))

    @functools.cached_property
    def _judge(self) -> MathJudge:
        return self.enter_context(MathJudge.from_config(self._config.reward))

    @functools.cached_property
    def _params(self):
        learner = Learner(self._setup.model, self._setup.mesh, self._config)
        return learner.rollout_params(self._policy.params(learner))

    def _scheduler(self, programs: bool) -> Scheduler:
        """The tool loop; a program is asked for in a single turn."""
        config = self._config.copy_and_resolve_references()
        with config.unlocked():
            config.rollout.max_turns = 1 if programs else config.rollout.max_turns
        _ = self._judge  # in this thread, before any other asks for it
        return Scheduler(self._setup.engine, self._setup.tokenizer, self._sandbox.client, config)


def _sample(benchmark: str, problem, trajectory: Trajectory, verdict: Verdict, decode) -> Sample:
    return Sample(
        benchmark=benchmark,
        problem=problem.id,
        sample=trajectory.sample,
        outcome=verdict.outcome.value,
        reason=verdict.reason,
        answer=verdict.answer,
        end=trajectory.end.value,
        prompt_tokens=trajectory.prompt_length,
        response_tokens=int(trajectory.loss_mask.sum()),
        observation_tokens=int((trajectory.authors == Author.TOOL).sum()),
        turns=trajectory.turns,
        calls=len(trajectory.calls),
        valid_calls=sum(call.valid for call in trajectory.calls),
        code_lines=sum(len(call.code.split("\n")) for call in trajectory.calls),
        text=decode(trajectory.tokens.tolist()),
    )


@dataclasses.dataclass(frozen=True)
class _Baseline:
    """Another evaluation: what its folder claims of each benchmark, and its samples."""

    folder: str
    claim: dict[str, dict]
    samples: list[Sample]


def _read_baseline(folder: str | None) -> _Baseline | None:
    if folder is None:
        return None
    claimed = read_claim(pathlib.Path(folder))
    samples, _ = read_samples(pathlib.Path(folder) / SAMPLES)
    return _Baseline(folder, claimed, list(samples.values()))


def _report(title, samples, too_long, k, baseline: _Baseline | None) -> Report:
    tables, compared = [], {}
    for benchmark, not_attempted in too_long.items():
        name, problems = benchmark.name, [problem.id for problem in benchmark.problems]
        mine = [sample for sample in samples.values() if sample.benchmark == name]
        tables.append(benchmark_table(name, mine, problems, not_attempted, k))
        if baseline is not None and name in baseline.claim:
            theirs = [sample for sample in baseline.samples if sample.benchmark == name]
            claimed = baseline.claim[name]
            compared[name] = differences(
                per_problem(theirs, claimed["problems"], claimed["not_attempted"], k),
                per_problem(mine, problems, not_attempted, k),
            )
    return Report(title, tables, baseline.folder if baseline else "", compared)
