#!/usr/bin/env bash
# Attention of the CPU backend against the limits of the same run: decode, prefill, cascade, mixed
# batches, quantised KV. Ends with one line a target: RESULT <name> <value> <target> <ok|short>.
#   bench/attention_cpu.sh [build/tenon]      SECONDS_EACH=1 for steadier figures
set -euo pipefail
cd "$(dirname "$0")/.."
python3 bench/attention_cpu.py "${1:-build/tenon}" "${SECONDS_EACH:-0.5}"
