#!/usr/bin/env bash
# Measures sampler and update of random Qwen2-shaped policies of 0.5B and 1.5B parameters in bfloat16 on one GPU:
# one JSON line each with tokens/s, MFU and share of memory bandwidth, also appended to benchmark_gpu.jsonl.
# It ends within 8 minutes. `--dry` runs it at toy size on the CPU.
#
#   bash tools/benchmark_gpu.sh [--dry]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-.venv/bin/python}"
out="${OUT:-benchmark_gpu.jsonl}"

if [ "${1:-}" = --dry ]; then
  export JAX_PLATFORMS=cpu
  set -- toy:120
else
  # The update of 1.5B parameters needs 40 GB; a smaller GPU still measures 0.5B, which comes first.
  set -- 0.5b:180 1.5b:300
fi
for run in "$@"; do
  timeout "${run#*:}" "$python" tools/benchmark_gpu.py --model "${run%:*}" | tee -a "$out"
done
