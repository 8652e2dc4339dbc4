#!/usr/bin/env bash
# Runs the tests, making the Python environment first if need be. Arguments go to pytest.
#
#   bash tools/test.sh [tests/training -k resume ...]
#
# Works from any directory; relative paths are relative to the repository root.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

ensure_environment requirements-test.txt
cd "$root"
exec "$venv/bin/python" -m pytest "$@"
