#!/usr/bin/env python3
"""torch's scaled_dot_product_attention (cuDNN and flash) on batches of equal rows: JSON on stdout.

Contiguous keys and values, one graph over as many layers as keep the caches cold, as `tenon bench
attention` does it. Batches are those of its grammar with a single term: 16q1s1k, 8q8k.
"""
import argparse
import json
import math
import re
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

CACHE_BYTES = 192e6
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def parse_batch(spec):
    match = re.fullmatch(r"(\d*)q(\d+)(k?)(?:s(\d+)(k?))?", spec)
    if match is None:
        raise ValueError(f"{spec}: one term of the batch grammar, please")
    count, q, q_kilo, s, s_kilo = match.groups()
    queries = int(q) * (1024 if q_kilo else 1)
    keys = queries if s is None else int(s) * (1024 if s_kilo else 1)
    return int(count or 1), queries, keys


def measure(spec, backend, args):
    count, queries, keys = parse_batch(spec)
    kv_bytes = count * keys * args.num_kv_heads * 2 * args.head_dim * 2
    layers = 1 if kv_bytes >= 2**29 else max(2, min(64, math.ceil(CACHE_BYTES / kv_bytes)))

    def tensor(heads, length):
        return torch.randn(count, heads, length, args.head_dim, device="cuda", dtype=torch.bfloat16)

    q = tensor(args.num_heads, queries)
    cells = [(tensor(args.num_kv_heads, keys), tensor(args.num_kv_heads, keys)) for _ in range(layers)]
    causal = queries > 1
    if causal and queries != keys:
        raise ValueError(f"{spec}: a chunk with context is nothing that SDPA masks causally")

    def run():
        with sdpa_kernel([BACKENDS[backend]]):
            for k, v in cells:
                torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    torch.cuda.synchronize()
    samples = []
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    while len(samples) < 5 or sum(samples) * layers < args.seconds:
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        samples.append(start.elapsed_time(stop) * 1e-3 / layers)
    pairs = queries * (queries + 1) / 2 if causal else queries * keys
    run_seconds = statistics.median(samples)
    flops = 4.0 * args.head_dim * args.num_heads * count * pairs
    return {
        "batch": spec,
        "peer": f"torch {torch.__version__.split('+')[0]} {backend}",
        "run_us": run_seconds * 1e6,
        "run_us_min": min(samples) * 1e6,
        "run_us_max": max(samples) * 1e6,
        "kv_bytes_per_second": kv_bytes / run_seconds,
        "flops_per_second": flops / run_seconds,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", nargs="+", required=True)
    parser.add_argument("--num-heads", type=int, default=32)
    parser.add_argument("--num-kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=0.2)
    args = parser.parse_args()
    rows = []
    for spec in args.batch:
        for backend in BACKENDS:
            try:
                rows.append(measure(spec, backend, args))
            except (RuntimeError, ValueError) as error:
                reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                rows.append({"batch": spec, "peer": f"torch {backend}", "refused": reason})
            torch.cuda.empty_cache()
    json.dump({"rows": rows}, sys.stdout, indent=2)


if __name__ == "__main__":
    main()
