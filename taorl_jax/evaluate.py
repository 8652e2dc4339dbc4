"""The evaluation command.

`python -m taorl_jax.evaluate --config CONFIG [--workdir RUN]`: the held-out set of a run.
`python -m taorl_jax.evaluate --config CONFIG --checkpoint POLICY --benchmarks amc23,hmmt25`: benchmarks.
"""

from absl import flags

from taorl_jax import command
from taorl_jax.errors import UserError

_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Directory of a run, whose latest checkpoint is evaluated. Default: the initial policy."
)
_BENCHMARKS = flags.DEFINE_list("benchmarks", None, "Benchmarks, with a comma between: keys of `benchmarks`.")
_CHECKPOINT = flags.DEFINE_string(
    "checkpoint", None, "Hugging Face folder, run, or <run>/checkpoints/<step>. Default: the initial policy."
)
_K = flags.DEFINE_integer("k", None, "Samples of each problem. Default: eval.samples.", lower_bound=1)
_PRESET = flags.DEFINE_string("preset", "", "Budgets and sampling: paper, training, greedy, or paper,greedy.")
_OUTPUT = flags.DEFINE_string("output", None, "Folder of samples and tables. Default: under evaluations/.")
_BASELINE = flags.DEFINE_string("baseline", None, "Folder of another evaluation, to compare with by problem.")


def main(config, console):
    """Evaluates."""
    if _BENCHMARKS.value is None:
        for flag in (_CHECKPOINT, _K, _PRESET, _OUTPUT, _BASELINE):
            if flag.present:
                raise UserError(
                    f"--{flag.name} goes with --benchmarks; the held-out set is that of --workdir"
                )
        from taorl_jax.evaluation.run import evaluate_run

        evaluate_run(config, _WORKDIR.value, console)
        return
    from taorl_jax.config import apply_presets
    from taorl_jax.evaluation.benchmark_run import evaluate_benchmarks

    config = apply_presets(config, _PRESET.value)
    if _K.value is not None:
        config.eval.samples = _K.value
    evaluate_benchmarks(
        config,
        _CHECKPOINT.value or _WORKDIR.value,
        _BENCHMARKS.value,
        output=_OUTPUT.value,
        baseline=_BASELINE.value,
        console=console,
    )


if __name__ == "__main__":
    command.run(main)
