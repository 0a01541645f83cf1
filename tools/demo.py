"""Shows Tenon at work: starts `tenon serve` on a free loopback port, waits for /health, streams one chat completion
over HTTP to the terminal, prints the timings and the attention backend with the reason for it, and stops the server.
"""

import http.client
import json
import signal
import subprocess
import sys
import tempfile
import time

PROMPT = "In three sentences: what is a mortise and tenon joint, and why is it strong?"
START_TIMEOUT = 60  # seconds


def wait_for_port(server: subprocess.Popen) -> int:
    for line in server.stdout:  # the server prints its address once it is ready
        if line.startswith("Tenon is listening on "):
            return int(line.rsplit(":", 1)[1])
    sys.exit(f"the server ended with exit code {server.wait()}")


def wait_for_health(port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.02)
    sys.exit("the server did not become healthy")


def served_model(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", "/v1/models")
    return json.load(connection.getresponse())["data"][0]["id"]


def stream_answer(port: int) -> None:
    body = {"model": served_model(port), "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 160,
            "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    start = time.monotonic()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        sys.exit(f"HTTP {response.status}: {response.read().decode()}")
    first = last = None
    usage = {}
    for raw in response:
        line = raw.decode().strip()
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        event = json.loads(line[len("data: "):])
        if "error" in event:
            sys.exit(event["error"]["message"])
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            text = choice["delta"].get("content")
            if text:
                last = time.monotonic()
                first = first or last
                print(text, end="", flush=True)
    print("\n")
    prompt_tokens, output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
    ttft = first - start
    print(f"TTFT {ttft * 1e3:.0f} ms | input {prompt_tokens / ttft:.0f} tok/s ({prompt_tokens} tokens) | "
          f"output {(output_tokens - 1) / max(last - first, 1e-9):.1f} tok/s ({output_tokens} tokens)")


def main() -> None:
    binary = sys.argv[1]
    with tempfile.TemporaryFile("w+") as log:
        began = time.monotonic()
        server = subprocess.Popen([binary, "serve", "--host", "127.0.0.1", "--port", "0"], stdout=subprocess.PIPE,
                                  stderr=log, text=True)
        try:
            port = wait_for_port(server)
            wait_for_health(port)
            print(f"{binary} serve is ready after {time.monotonic() - began:.2f} s on http://127.0.0.1:{port}\n")
            print(f"> {PROMPT}\n")
            stream_answer(port)
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(timeout=30)
            except subprocess.TimeoutExpired:
                server.kill()
            log.seek(0)
            lines = log.read().splitlines()
            if server.returncode not in (0, -signal.SIGTERM):
                print("\n".join(lines), file=sys.stderr)
        for line in lines:
            if "attention backend:" in line:
                print("Attention backend:" + line.split("attention backend:", 1)[1])
    print(f"\nGo on with:\n  {binary} chat\n  {binary} serve --port 8000      (then POST /v1/chat/completions)\n"
          f"  {binary} --help")


if __name__ == "__main__":
    main()
