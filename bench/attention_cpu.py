"""Runs `tenon bench attention` on the batches that the CPU backend's targets name; see attention_cpu.sh."""
import json
import subprocess
import sys

MHA = ("32", "32", "64")    # query heads, KV heads, head size
GQA3 = ("9", "3", "64")     # SmolLM2-135M
LLAMA8B = ("32", "8", "128")


def run(tenon, seconds, shape, backends, batches):
    """(batch, backend) -> row of the report. Backends take turns within the run."""
    heads, kv_heads, dim = shape
    command = [tenon, "bench", "attention", "--device", "cpu", "--num-heads", heads, "--num-kv-heads", kv_heads,
               "--head-dim", dim, "--seconds", str(seconds), "--json", "-", "--backends", *backends, "--batch", *batches]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    name = f"{heads}/{kv_heads} heads of {dim}"
    print(f"{name}: read {report['read_bytes_per_second'] / 1e9:.1f} GB/s, "
          f"{report['flops_name']} {report['flops_per_second'] / 1e9:.0f} GFLOP/s")
    rows = {}
    for row in report["rows"]:
        rows[row["batch"], row["backend"]] = row
        print(f"  {row['batch']:>18} {row['backend']:<12} {row['run_us']:10.1f} us  {row['bytes_per_second'] / 1e9:6.1f} GB/s"
              f"  {row['flops_per_second'] / 1e9:6.1f} GFLOP/s  {100 * row['share_of_limit']:5.1f} % of the limit"
              f"  plan {row['plan_us']:.1f} us")
    return report, rows


def main():
    tenon, seconds = sys.argv[1], float(sys.argv[2])
    results = []

    def target(name, value, least):
        results.append((name, value, least, value >= least))

    def ratio(rows, batch, slow, fast):
        return rows[batch, slow]["run_us"] / rows[batch, fast]["run_us"]

    for label, shape in (("mha", MHA), ("gqa3", GQA3), ("8b", LLAMA8B)):
        report, rows = run(tenon, seconds, shape, ["cpu", "cpu:int8", "cpu:fp8"], ["16q1s8k"])
        target(f"decode_16x8k_{label}_share_of_limit", rows["16q1s8k", "cpu"]["share_of_limit"], 0.8)
        target(f"int8_16x8k_{label}_speedup", ratio(rows, "16q1s8k", "cpu", "cpu:int8"), 1.3 if label == "mha" else 1.0)
        report, rows = run(tenon, seconds, shape, ["cpu"], ["q2k"])
        target(f"prefill_2k_{label}_share_of_fma", rows["q2k", "cpu"]["flops_per_second"] / report["flops_per_second"], 0.5)
    for label, shape, least in (("mha", MHA, 2.5), ("gqa3", GQA3, 1.2)):
        batches = ["16q1s2112p2048", "64q1s2112p2048"]
        _, rows = run(tenon, seconds, shape, ["cpu", "cpu:plain"], batches)
        for batch in batches:
            target(f"cascade_{batch.split('q')[0]}_rows_{label}_speedup", ratio(rows, batch, "cpu:plain", "cpu"), least)
    for label, shape in (("mha", MHA), ("gqa3", GQA3)):
        _, rows = run(tenon, seconds, shape, ["cpu", "cpu:unified"], ["1q512_15q1s2k"])
        target(f"mixed_{label}_split_over_unified", ratio(rows, "1q512_15q1s2k", "cpu:unified", "cpu"), 1.3)
    _, rows = run(tenon, seconds, GQA3, ["cpu"], ["256q1s1k"])
    target("plan_256_rows_20us_over_plan", 20.0 / rows["256q1s1k", "cpu"]["plan_us"], 1.0)
    for name, value, least, ok in results:
        print(f"RESULT {name} {value:.2f} {least} {'ok' if ok else 'short'}")


if __name__ == "__main__":
    main()
