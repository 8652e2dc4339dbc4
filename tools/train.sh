#!/usr/bin/env bash
# Trains a policy, making the Python environment first if need be.
#
#   bash tools/train.sh experiments/quickstart.py [--workdir runs/a] [--config.train.steps=5 ...]
#
# Works from any directory; relative paths are relative to the repository root.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

if [ $# -eq 0 ] || [ "${1#-}" != "$1" ]; then
  stop "The first argument is a config file: bash tools/train.sh experiments/quickstart.py [flags...]"
fi
ensure_environment requirements.txt
cd "$root"
exec "$venv/bin/python" -m taorl_jax.train --config "$@"
