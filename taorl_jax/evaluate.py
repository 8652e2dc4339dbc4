"""The evaluation command: `python -m taorl_jax.evaluate --config CONFIG [--workdir DIR]`."""

from absl import flags

from taorl_jax import command

_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Directory of a run, whose latest checkpoint is evaluated. Default: the initial policy."
)


def main(config, console):
    """Evaluates."""
    from taorl_jax.evaluation.run import evaluate_run

    evaluate_run(config, _WORKDIR.value, console)


if __name__ == "__main__":
    command.run(main)
