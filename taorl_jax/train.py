"""The training command: `python -m taorl_jax.train --config CONFIG [--workdir DIR]`."""

from absl import flags

from taorl_jax import command

_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Directory of the run; continued if it holds one. Default: a fresh one."
)


def main(config, console):
    """Trains."""
    from taorl_jax.training.loop import train

    train(config, _WORKDIR.value, console)


if __name__ == "__main__":
    command.run(main)
