#!/usr/bin/env python3
"""The page of bench/h200.sh from the files it left in a folder."""
import json
import pathlib
import re
import sys

folder = pathlib.Path(sys.argv[1])
results = []


def text(name):
    path = folder / name
    return path.read_text(errors="replace") if path.exists() else ""


def data(name):
    try:
        return json.loads(text(name))
    except ValueError:
        return None


def exit_code(name):
    return text(name + ".rc").strip()


def result(name, value, target, ok):
    results.append(f"RESULT {name} {value} {target} {'ok' if ok else 'short'}")


def at_least(name, value, target):
    result(name, f"{value:.4g}", f">={target:g}", value >= target)


def at_most(name, value, target):
    result(name, f"{value:.4g}", f"<={target:g}", value <= target)


def table(header, rows):
    if not rows:
        return
    print("| " + " | ".join(header) + " |")
    print("|" + "|".join(" --- " if i == 0 else " ---: " for i in range(len(header))) + "|")
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print()


def checks():
    rows = []
    for path in sorted(folder.glob("conformance_*.txt")):
        backend = path.stem.removeprefix("conformance_")
        lines = [line for line in text(path.name).splitlines() if "against reference" in line]
        last = lines[-1] if lines else "did not finish"
        rows.append((f"conformance, {backend}", last.split(": ", 1)[-1], exit_code(path.name)))
        counts = re.search(r"(\d+) passed, (\d+) failed, (\d+) refused", last)
        result(f"conformance_{backend}", "/".join(counts.groups()) if counts else "none", "passed/0/refused",
               bool(counts) and exit_code(path.name) == "0")
    for path in sorted(folder.glob("sanitizer_*.txt")):
        lines = [line.strip("= \n") for line in text(path.name).splitlines() if "SUMMARY" in line]
        rows.append((path.stem.replace("_", ", "), "; ".join(lines) or "did not finish", exit_code(path.name)))
        result(path.stem, (lines or ["none"])[-1].split(":")[-1].strip().split(" ")[0], 0, exit_code(path.name) == "0")
    for path in sorted(folder.glob("tests_*.txt")):
        lines = re.findall(r"\[  (?:PASSED|FAILED)  \].*", text(path.name))
        rows.append((path.stem.removeprefix("tests_"), "; ".join(lines[:3]) or "did not finish", exit_code(path.name)))
        result(path.stem, exit_code(path.name), 0, exit_code(path.name) == "0")
    if rows:
        print("## Checks\n")
        table(("check", "outcome", "exit"), rows)
    for path in sorted(folder.glob("tests_*.txt")):
        parts = [line.strip() for line in text(path.name).splitlines() if "parts at token" in line]
        if parts:
            print("Greedy answers that part from the reference's, with the gap by which it chose there:\n")
            print("\n".join(f"- {line}" for line in parts) + "\n")


def attention_table(name, title):
    report = data(name)
    if report is None:
        return None
    read, flops = report["read_bytes_per_second"], report["flops_per_second"]
    print(f"### {title}\n")
    print(f"{report['num_heads']}/{report['num_kv_heads']} heads of {report['head_dim']}, bf16. Ceilings: "
          f"{read * 1e-9:.0f} GB/s read, {report['flops_name']} {flops * 1e-12:.0f} TFLOP/s.\n")
    peers = {}
    if name == "attention.json":
        for row in (data("peers.json") or {"rows": []})["rows"]:
            peers.setdefault(row["batch"], []).append(row)
    rows = []
    for row in report["rows"]:
        key = f"{row['batch']}" + (f", page {row['block_size']}" if row["block_size"] != 16 else "")
        if "refused" in row:
            rows.append((key, row["backend"], row["refused"], "", "", "", "", ""))
            continue
        rows.append((key, row["backend"], f"{row['run_us']:.1f}", f"{row['run_us_min']:.1f} to {row['run_us_max']:.1f}",
                     f"{row['bytes_per_second'] / read:.3f}", f"{row['flops_per_second'] * 1e-12:.0f}",
                     f"{row['share_of_limit']:.3f}", f"{row['plan_us']:.0f} ({row['plan_us_max']:.0f})"))
        last = [r for r in report["rows"] if r["batch"] == row["batch"] and r["block_size"] == row["block_size"]][-1]
        for peer in peers.get(row["batch"], []) if row is last else []:
            if "refused" in peer:
                rows.append((key, peer["peer"], peer["refused"][:60], "", "", "", "", ""))
                continue
            rows.append((key, peer["peer"], f"{peer['run_us']:.1f}",
                         f"{peer['run_us_min']:.1f} to {peer['run_us_max']:.1f}",
                         f"{peer['kv_bytes_per_second'] / read:.3f}", f"{peer['flops_per_second'] * 1e-12:.0f}", "", ""))
    table(("batch", "backend", "us", "min to max", "of read rate", "TFLOP/s", "of the limit", "plan us (max)"), rows)
    return report


def best(report, batch, key="run_us", smallest=True):
    values = [row[key] for row in report["rows"] if row["batch"] == batch and key in row]
    if not values:
        return None
    return min(values) if smallest else max(values)


def attention():
    if data("attention.json") is None:
        return
    print("## Attention\n")
    print("Medians of graphs over layers with keys of their own (cold L2), pages shuffled. `of the limit`: the larger of "
          "bytes by read rate and operations by matrix rate, over the time.\n")
    report = attention_table("attention.json", "Backends, and peers on contiguous keys")
    attention_table("attention_again.json", "The same again")
    attention_table("attention_blocks.json", "Other page sizes")
    attention_table("attention_7b.json", "Heads of Llama-2-7B")
    read = report["read_bytes_per_second"]
    # A cell counts with its best backend; the target with its worst cell.
    shares = {row["batch"]: 0.0 for row in report["rows"] if row.get("kv_bytes", 0) >= 1e9 and "q1s" in row["batch"]
              and "_" not in row["batch"]}
    for row in report["rows"]:
        if row["batch"] in shares and "run_us" in row:
            shares[row["batch"]] = max(shares[row["batch"]], row["bytes_per_second"] / read)
    if shares:
        at_least("decode_1gb_share_of_read", min(shares.values()), 0.95)
    for batch, target in (("1q1s1k", 9.5), ("16q1s1k", 28), ("1q2k_63q1s2k", 215)):
        if best(report, batch) is not None:
            at_most(f"attention_{batch}_us", best(report, batch), target)
    for batch, target in (("8q8176s8k", 580), ("q2032s2k", 430)):
        value = best(report, batch, "flops_per_second", smallest=False)
        if value is not None:
            at_least(f"prefill_{batch}_tflops", value * 1e-12, target)
    for backend in ("flash", "flashinfer"):
        plans = [row["plan_us"] for row in report["rows"] if row["backend"] == backend and "plan_us" in row]
        if plans:
            at_most(f"plan_{backend}_us", max(plans), 100)
    runs = {(row["batch"], row["backend"]): row["run_us"] for row in report["rows"]
            if "run_us" in row and row["block_size"] == 16}
    for (batch, backend), auto in runs.items():
        single = runs.get((batch, "flashinfer:unified"))
        if "_" in batch and backend == "flashinfer" and single:
            at_least(f"attention_{batch}_auto_vs_single_prefill", single / auto, 1.6)


SHAPES = {"8b": "llama-3.1-8b", "7b": "llama-2-7b", "13b": "llama-2-13b"}


def kv_bytes_per_token(shape):
    config = json.loads((pathlib.Path(__file__).parent / "models" / SHAPES[shape] / "config.json").read_text())
    dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return config["num_hidden_layers"] * config.get("num_key_value_heads", config["num_attention_heads"]) * dim * 2 * 2


def latency():
    read = (data("attention.json") or {}).get("read_bytes_per_second")
    rows = []
    for shape in ("8b", "7b", "13b", "135m"):
        report = data(f"latency_{shape}.json")
        if report is None:
            continue
        name = "SmolLM2-135M (real weights)" if shape == "135m" else SHAPES[shape]
        for row in report["rows"]:
            profile = row["profile"]
            host = profile["host_us_per_step"]
            limit = ""
            if read and shape != "135m":
                keys = row["batch_size"] * row["context"]
                step = report["model"]["weight_bytes"] + keys * kv_bytes_per_token(shape)
                limit = f"{step / read * 1e3 / row['ms_per_step']:.3f}"
            rows.append((name, row["batch_size"], f"{row['context']:.0f}", f"{row['ms_per_step']:.3f}",
                         f"{row['ms_per_step_p99']:.3f}", f"{row['output_tokens_per_second']:.0f}", limit,
                         f"{host['schedule'] + host['prepare']:.0f}", f"{host['launch']:.0f}", f"{host['commit']:.0f}",
                         f"{100 * profile['device_idle_share']:.1f}"))
        batches = {row["batch_size"]: row for row in report["rows"]}
        if shape == "8b":
            if 1 in batches:
                at_most("decode_8b_batch_1_ms", batches[1]["ms_per_step"], 4.2)
            for size, target in ((64, 9000), (256, 17000)):
                if size in batches:
                    at_least(f"decode_8b_batch_{size}_tok_s", batches[size]["output_tokens_per_second"], target)
            if 256 in batches:
                profile = batches[256]["profile"]
                host = profile["host_us_per_step"]
                at_most("host_us_per_step_256", host["schedule"] + host["prepare"], 150)
                at_most("gpu_idle_share", profile["device_idle_share"], 0.03)
            at_most("first_token_8b_s", report["start_up"]["first_token_seconds"], 5)
        if shape == "135m":
            at_most("first_token_135m_s", report["start_up"]["first_token_seconds"], 1.5)
    if not rows:
        return
    print("## Steady decode\n")
    print("Random weights of the true shapes unless said otherwise. `of the limit`: weights and keys by the read rate, "
          "over the time. Context: the mean of the measured steps. Host: microseconds a step of the engine's thread.\n")
    table(("model", "batch", "context", "ms/step", "p99", "tok/s", "of the limit", "plan us", "launch us", "commit us",
           "GPU idle %"), rows)
    starts = [(shape, data(f"latency_{shape}.json")) for shape in ("8b", "7b", "13b", "135m")]
    table(("model", "first token after the start of the process, s", "of them loading"),
          [(shape, f"{report['start_up']['first_token_seconds']:.2f}", f"{report['start_up']['load_seconds']:.2f}")
           for shape, report in starts if report])


def throughput():
    rows, rates = [], {}
    names = {"flash_auto": "flash", "flashinfer_auto": "flashinfer auto", "flashinfer_split": "flashinfer split",
             "flashinfer_unified": "flashinfer single-prefill"}
    for key, name in names.items():
        report = data(f"throughput_{key}.json")
        if report is None:
            continue
        rates[key] = report["output_tokens_per_second"]
        host = report["profile"]["host_us_per_step"]
        rows.append((name, report["num_prompts"], f"{report['requests_per_second']:.2f}",
                     f"{report['input_tokens_per_second']:.0f}", f"{report['output_tokens_per_second']:.0f}",
                     f"{report['tpot_ms']['median']:.1f}", f"{host['schedule'] + host['prepare']:.0f}",
                     f"{100 * report['profile']['device_idle_share']:.1f}", report["preemptions"]))
    if rows:
        print("## The rows of the original report\n")
        print("Llama-3.1-8B shape, random weights, 1000 tokens in, 128 out, all requests at once.\n")
        table(("attention", "requests", "req/s", "input tok/s", "output tok/s", "TPOT ms", "plan us", "GPU idle %",
               "preemptions"), rows)
    if "flashinfer_auto" in rates:
        at_least("flashinfer_auto_vs_best", rates["flashinfer_auto"] / max(rates.values()), 0.97)
        if "flashinfer_unified" in rates:
            result("end_to_end_auto_vs_single_prefill", f"{rates['flashinfer_auto'] / rates['flashinfer_unified']:.3f}",
                   "printed", True)
    if rates:
        at_least("throughput_output_tok_s", max(rates.values()), 3840)
        at_least("throughput_input_tok_s", max(rates.values()) * 1000 / 128, 30000)


def profile():
    rows, attention = [], {}
    for path in sorted(folder.glob("profile_*.json")):
        report = data(path.name)
        if report is None or "sections_seconds" not in report["profile"]:
            continue
        part = report["profile"]
        sections = part["sections_seconds"]
        key = path.stem.removeprefix("profile_")
        attention[key] = sections["attention"]
        total = part["seconds"]
        idle = total - sum(sections.values())
        rows.append((key.replace("_", " "), part["steps"], f"{total:.2f}") +
                    tuple(f"{100 * sections[name] / total:.1f}" for name in ("attention", "linear", "sampling", "other")) +
                    (f"{100 * idle / total:.1f}", f"{part['gain_if_attention_30_percent_faster']:.3f}"))
    if rows:
        print("## Where a step's time goes\n")
        print("Same load with fewer requests, timed by section, without graphs. Shares in %; the last column is what "
              "attention 30 % faster would bring end to end: 1 / (1 - a + a / 1.3).\n")
        table(("run", "steps", "seconds", "attention", "linear", "sampling", "other", "host, idle", "gain"), rows)
    if "flashinfer_auto" in attention and "flashinfer_unified" in attention:
        # All steps of the load, those that only decode among them.
        ratio = attention["flashinfer_unified"] / attention["flashinfer_auto"]
        result("load_attention_auto_vs_single_prefill", f"{ratio:.3f}", "printed", True)


def main():
    print("# H200\n")
    print(f"{text('version.txt').strip()}, commit {text('commit.txt').strip() or 'unknown'}. GPU (name, driver, SM and "
          f"memory clock, largest SM clock, power, limit, temperature) before: {text('gpu.txt').strip()}; after: "
          f"{text('gpu_after.txt').strip() or 'the run did not end'}.\n")
    if text("notes.md"):
        print(text("notes.md").strip() + "\n")
    checks()
    attention()
    latency()
    profile()
    throughput()
    print("## Targets\n")
    print("\n".join(results))


main()
