"""Measures for cpu_vs_llama_cpp.sh: alternating rounds of Tenon and llama.cpp with bandwidth probes around each block.

Rates are medians over rounds; a ratio is the median of the ratios round by round, so that a machine whose speed
drifts does not decide. A round whose probes before and after differ by more than a fifth is marked.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess

PREFILL = 512
DECODE = 128
CONCURRENT = 16


def run_json(command, env=None):
    result = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    return json.loads(result.stdout)


def probe(args):
    result = run_json([args.tenon, "bench", "probe", "--threads", str(args.threads), "--json"])
    return result["read_bytes_per_second"], result["flops_per_second"]


def tenon_single(args):
    rows = run_json([args.tenon, "bench", "latency", "--model", args.model, "--threads", str(args.threads),
                     "--prompt-len", str(PREFILL), "--output-len", str(DECODE), "-r", "3", "--json"])
    return {row["test"]: row["median"] for row in rows["rows"]}, rows["model"]


def peer_single(args):
    rows = run_json([args.peer, "-m", args.model, "-t", str(args.threads), "-p", str(PREFILL), "-n", str(DECODE),
                     "-r", "3", "-o", "json"])
    rates = {}
    for row in rows:
        name = f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
        rates[name] = statistics.median(row["samples_ts"])
    return rates


def tenon_concurrent(args):
    result = run_json([args.tenon, "bench", "throughput", "--model", args.model, "--threads", str(args.threads),
                       "--num-prompts", str(CONCURRENT), "--input-len", "16", "--output-len", str(DECODE),
                       "--json"])
    return result["output_tokens_per_second"]


def cpu_name():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def spread(values, digits=0):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main():
    parser = argparse.ArgumentParser()
    for name in ("--tenon", "--peer", "--model", "--out"):
        parser.add_argument(name)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()

    prefill, decode = f"pp{PREFILL}", f"tg{DECODE}"
    rounds, model = [], {}
    for index in range(args.rounds):
        entry = {"before": probe(args)}
        # ABBA: who goes first changes every round.
        for who in ("tenon", "peer") if index % 2 == 0 else ("peer", "tenon"):
            if who == "tenon":
                entry["tenon"], model = tenon_single(args)
                entry["concurrent"] = tenon_concurrent(args)
            else:
                entry["peer"] = peer_single(args)
        entry["after"] = probe(args)
        rounds.append(entry)

    bandwidth = [(r["before"][0] + r["after"][0]) / 2 for r in rounds]
    fma = [(r["before"][1] + r["after"][1]) / 2 for r in rounds]
    limit = [b / model["weight_bytes"] for b in bandwidth]  # decode reads every weight once a token
    unsteady = sum(abs(r["before"][0] - r["after"][0]) > 0.2 * max(r["before"][0], r["after"][0]) for r in rounds)
    ratios = {name: [r["tenon"][name] / r["peer"][name] for r in rounds] for name in (prefill, decode)}
    ratio = {name: statistics.median(values) for name, values in ratios.items()}
    many_ratios = [r["concurrent"] / r["peer"][decode] for r in rounds]
    many = statistics.median(many_ratios)
    to_limit = statistics.median(r["tenon"][decode] / l for r, l in zip(rounds, limit))

    lines = [
        f"# CPU: Tenon beside llama.cpp, {datetime.date.today()}",
        "",
        f"{cpu_name()}, {os.cpu_count()} CPUs visible, {args.threads} threads; {pathlib.Path(args.model).name}; {args.rounds} "
        f"rounds, alternating; tok/s as median (min to max). Tenon: {model['isa']}, attention "
        f"{model['attention_backend']}, KV {model['kv_cache_dtype']}. llama.cpp: llama-bench, native build.",
        "",
        "| test | Tenon | llama.cpp | ratio, median of rounds | worst round |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name in (prefill, decode):
        lines.append(f"| {name} | {spread([r['tenon'][name] for r in rounds])} | "
                     f"{spread([r['peer'][name] for r in rounds])} | {ratio[name]:.2f} | {min(ratios[name]):.2f} |")
    lines += [
        f"| {CONCURRENT} requests at once, {DECODE} tokens each, total output | "
        f"{spread([r['concurrent'] for r in rounds])} | single stream, as above | {many:.2f} | {min(many_ratios):.2f} |",
        "",
        f"Ceilings of the same run: f32 FMA {spread([f * 1e-9 for f in fma])} GFLOP/s, read bandwidth "
        f"{spread([b * 1e-9 for b in bandwidth], 1)} GB/s; the weights are "
        f"{model['weight_bytes'] / 1e6:.1f} MB, so the limit of decode is {spread(limit)} tok/s; "
        f"Tenon's decode reaches {to_limit:.2f} of it (median of rounds). "
        f"Rounds whose two probes differ by more than a fifth: {unsteady} of {args.rounds}.",
        "",
    ]
    for name, value, target in (("cpu_decode_vs_llama_cpp", ratio[decode], 0.9),
                                ("cpu_prefill512_vs_llama_cpp", ratio[prefill], 0.9),
                                ("cpu_16_concurrent_vs_llama_cpp_single", many, 3.0)):
        lines.append(f"RESULT {name} {value:.3f} {target} {'ok' if value >= target else 'short'}")
    report = "\n".join(lines) + "\n"
    print(report, end="")
    if args.out:
        pathlib.Path(args.out).write_text(report)


if __name__ == "__main__":
    main()
