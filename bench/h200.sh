#!/usr/bin/env bash
# Checks and measures the CUDA path on one H200 and writes bench/results/<date>-h200.md.
#
#   bench/h200.sh [--quick] [--only PART[,PART...]] [--seconds N] [--out DIR]
#
# Parts, in this order: conformance attention latency throughput profile tests sanitizer. Every part leaves its
# results in --out (bench/results/h200-data) and the page is written anew after each, so that a run that was cut
# short, or split over several calls, loses nothing.
#
# A file notes.md in --out goes to the top of the page.
#
#   TENON        the program (build/tenon), or bin/tenon of an installed folder
#   GPU_TESTS    folder with the gpu_* test programs (build/tests); GPU_TESTS_LIB: their libraries
#   SMOLLM2      the GGUF file of SmolLM2-135M-Instruct; without it its rows are missing
#   NUM_PROMPTS  requests of the throughput rows (3000; 300 with --quick)
set -u
cd "$(dirname "$0")/.."
TENON=${TENON:-build/tenon}
GPU_TESTS=${GPU_TESTS:-build/tests}
SMOLLM2=${SMOLLM2:-$HOME/.cache/tenon/models/SmolLM2-135M-Instruct.Q4_1.gguf}
MODELS=bench/models
parts=conformance,attention,latency,throughput,profile,tests,sanitizer
quick=0 limit='' out=bench/results/h200-data
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=1; parts=conformance,attention,latency,throughput ;;
    --only) parts=$2; shift ;;
    --seconds) limit=$2; shift ;;
    --out) out=$2; shift ;;
    *) sed -n '2,15p' "$0"; exit 2 ;;
  esac
  shift
done
limit=${limit:-$([ $quick = 1 ] && echo 120 || echo 1200)}
mkdir -p "$out"
page=${PAGE:-bench/results/$(date +%F)-h200.md}

say() { printf '[%4d s] %s\n' $SECONDS "$*"; }
wants() { [[ ",$parts," == *",$1,"* ]]; }
# step NAME SECONDS COMMAND...: stdout to NAME, stderr and the exit code beside it.
step() {
  local name=$1 seconds=$2 left=$((limit - SECONDS)) begin=$SECONDS code
  shift 2
  if [ $left -lt 5 ]; then say "$name: no time left"; return 1; fi
  timeout $((seconds < left ? seconds : left)) "$@" > "$out/$name.part" 2> "$out/$name.err"
  code=$?
  echo $code > "$out/$name.rc"
  mv "$out/$name.part" "$out/$name"
  say "$name: exit $code, $((SECONDS - begin)) s"
  [ $code = 0 ] || tail -n 2 "$out/$name.err"
  return $code
}
gpu_state() {
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.draw,power.limit,temperature.gpu \
    --format=csv,noheader
}
report() { python3 bench/h200_report.py "$out" > "$page.part" && mv "$page.part" "$page"; }

gpu_state > "$out/gpu.txt" || { echo "no NVIDIA GPU" >&2; exit 1; }
"$TENON" --version > "$out/version.txt" || exit 1
git rev-parse --short HEAD > "$out/commit.txt" 2> /dev/null
say "$(cat "$out/gpu.txt")"

if wants conformance; then
  for backend in flash flashinfer; do
    step conformance_$backend.txt 90 "$TENON" backends --verify $backend --device cuda \
      --verify-level $([ $quick = 1 ] && echo quick || echo full)
    tail -n 1 "$out/conformance_$backend.txt"
  done
  report
fi
decode='1q1s1k 16q1s1k 64q1s1k 256q1s1k 64q1s8k 256q1s8k'
prefill='q2k q2032s2k 8q8k 8q8176s8k'
mixed='1q2k_63q1s2k 2q2k_32q1s8k q1k_128q1s4k'
contenders=flash,flashinfer,flashinfer:split,flashinfer:unified
if wants attention; then
  if [ $quick = 1 ]; then
    step attention.json 60 "$TENON" bench attention --device cuda --backends $contenders --rounds 3 --seconds 0.1 \
      --batch 1q1s1k 16q1s1k 64q1s8k q2032s2k 8q8176s8k 1q2k_63q1s2k --json -
  else
    step attention.json 120 "$TENON" bench attention --device cuda --backends $contenders \
      --batch $decode $prefill $mixed --json -
    step peers.json 90 python3 bench/peers/sdpa.py --batch $decode q2k 8q8k
    # The same cells again: how far two runs lie apart, and ceilings after the work.
    step attention_again.json 60 "$TENON" bench attention --device cuda --backends flash,flashinfer --rounds 3 \
      --seconds 0.1 --batch 1q1s1k 16q1s1k 64q1s8k q2032s2k 8q8176s8k 1q2k_63q1s2k --json -
    step attention_blocks.json 60 "$TENON" bench attention --device cuda --backends flash,flashinfer --rounds 3 \
      --seconds 0.1 --batch 16q1s1k 64q1s8k 4q4k 1q2k_63q1s2k --block-size 1 64 --json -
    step attention_7b.json 60 "$TENON" bench attention --device cuda --backends flash,flashinfer --rounds 3 \
      --seconds 0.1 --num-heads 32 --num-kv-heads 32 --batch 1q1s1k 64q1s1k 8q2k 1q2k_31q1s2k --json -
  fi
  report
fi

engine() { # engine NAME SECONDS MODEL bench-arguments
  local name=$1 seconds=$2 model=$3
  shift 3
  step "$name.json" "$seconds" "$TENON" bench "$@" --model "$model" --device cuda \
    $([ -f "$model" ] || echo --load-format dummy) --json
}
if wants latency; then
  # 992 tokens in and 64 out are 1,024 keys on average.
  engine latency_8b 60 $MODELS/llama-3.1-8b latency --max-model-len 8192 --input-len 992 --output-len 64 \
    --batch-size 1 64 $([ $quick = 1 ] || echo 256)
  if [ $quick = 0 ]; then
    engine latency_7b 60 $MODELS/llama-2-7b latency --max-model-len 4096 --input-len 992 --output-len 64 --batch-size 1 64
    engine latency_13b 60 $MODELS/llama-2-13b latency --max-model-len 4096 --input-len 992 --output-len 64 --batch-size 1 64
    [ -f "$SMOLLM2" ] && engine latency_135m 30 "$SMOLLM2" latency --input-len 512 --output-len 128 --batch-size 1 64
  fi
  report
fi
if wants throughput; then
  prompts=${NUM_PROMPTS:-$([ $quick = 1 ] && echo 300 || echo 3000)}
  rows='flash:auto flashinfer:auto flashinfer:split flashinfer:unified'
  [ $quick = 1 ] && rows='flash:auto flashinfer:auto'
  for row in $rows; do
    engine throughput_${row%:*}_${row#*:} 300 $MODELS/llama-3.1-8b throughput --max-model-len 8192 \
      --num-prompts $prompts --input-len 1000 --output-len 128 --attention-backend ${row%:*} --attention-split ${row#*:}
    report
  done
fi
if wants profile; then
  for row in flash:auto flashinfer:auto flashinfer:unified; do
    engine profile_${row%:*}_${row#*:} 60 $MODELS/llama-3.1-8b throughput --max-model-len 8192 --profile \
      --num-prompts 300 --input-len 1000 --output-len 128 --attention-backend ${row%:*} --attention-split ${row#*:}
  done
  for model in llama-2-7b llama-2-13b; do
    engine profile_$model 60 $MODELS/$model throughput --max-model-len 4096 --profile --num-prompts 100 \
      --input-len 1000 --output-len 128
  done
  report
fi
if wants tests; then
  for program in "$GPU_TESTS"/gpu_*; do
    [ -x "$program" ] || continue
    LD_LIBRARY_PATH=${GPU_TESTS_LIB:-}:${LD_LIBRARY_PATH:-} TENON_TEST_MODEL=$SMOLLM2 TENON_TEST_SOURCE_DIR=$PWD \
      step "tests_$(basename "$program").txt" 120 "$program" --gtest_brief=1
  done
  report
fi

if wants sanitizer; then
  for tool in memcheck racecheck; do
    for backend in flash flashinfer; do
      step sanitizer_${tool}_$backend.txt 90 compute-sanitizer --tool $tool --error-exitcode 9 \
        "$TENON" backends --verify $backend --device cuda --verify-level smoke
      tail -n 2 "$out/sanitizer_${tool}_$backend.txt"
    done
  done
  report
fi
gpu_state > "$out/gpu_after.txt"
report
grep '^RESULT' "$page"
say "written: $page"
