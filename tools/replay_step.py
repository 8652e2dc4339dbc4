"""Makes the update of a recorded step again, without a sampler, and prints its metrics as JSON.

`python tools/replay_step.py --config CONFIG --workdir RUN --step 12`: under the config of the run the metrics
are those that it logged, bit for bit on CPU; under another one (`--config.bonus.coefficient=0`) what that
would have made of the same episodes. A run records steps with `log.replay_every`, and the step starts from
the checkpoint before it, so that one must be kept; the first step starts from `policy.checkpoint`.
"""

import json
import pathlib
import sys

from absl import flags

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from taorl_jax import command

_WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the run.", required=True)
_STEP = flags.DEFINE_integer("step", None, "The step, from 1.", required=True, lower_bound=1)


def main(config, console):
    """Replays."""
    from taorl_jax.training.replay import replay_step

    print(json.dumps(replay_step(config, pathlib.Path(_WORKDIR.value), _STEP.value)))


if __name__ == "__main__":
    command.run(main)
