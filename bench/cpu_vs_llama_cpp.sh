#!/usr/bin/env bash
# Tenon beside llama.cpp on this CPU: the same GGUF, the same compiler and flags, the same number of threads, in one
# run, alternating, with a read-bandwidth probe before and after each block.
#
#   bench/cpu_vs_llama_cpp.sh [--threads N] [--rounds N] [--model FILE] [--out FILE.md]
#
# llama.cpp is built once from the source distribution of llama-cpp-python on PyPI (pinned), into the user's cache
# folder. Prints a table and RESULT lines, and writes them to --out if given.
set -euo pipefail
cd "$(dirname "$0")/.."

threads=2 rounds=7 out=
cache="${XDG_CACHE_HOME:-$HOME/.cache}/tenon"
model="$cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"
while [ $# -gt 0 ]; do
  case "$1" in
    --threads) threads=$2 ;;
    --rounds) rounds=$2 ;;
    --model) model=$2 ;;
    --out) out=$2 ;;
    *) echo "unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done

package=llama-cpp-python version=0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
peer="$cache/bench/llama.cpp-$version"
if [ ! -x "$peer/bin/llama-bench" ]; then
  echo "Building llama.cpp from $package $version (once, several minutes) ..." >&2
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  python3 tools/fetch_sdist.py "$package" "$version" "$sha256" "$work"
  tar -xzf "$work"/*.tar.gz -C "$work"
  source=$(echo "$work"/*/vendor/llama.cpp)
  cmake -S "$source" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DBUILD_SHARED_LIBS=OFF >&2
  cmake --build "$work/build" --target llama-bench >&2
  mkdir -p "$peer/bin"
  cp "$work/build/bin/llama-bench" "$peer/bin/"
fi
tools/setup.sh >&2
cmake --preset release >/dev/null && cmake --build build --target tenon >&2

exec python3 bench/cpu_vs_llama_cpp.py --tenon build/tenon --peer "$peer/bin/llama-bench" --model "$model" \
  --threads "$threads" --rounds "$rounds" ${out:+--out "$out"}
