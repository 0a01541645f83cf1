"""Holds every #include of src/ and include/ against the dependency table of the design.

A folder may include only the folders listed for it (and itself); third-party headers only where they are allowed,
so that a boundary cannot be crossed unnoticed. Exit code 1 and one line a violation.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# folder: folders of src/ it may include. "tenon" is the public API in include/tenon.
ALLOWED = {
    "tenon": {"tenon"},
    "base": {"tenon"},
    "formats": {"base", "tenon"},
    "tensor": {"base"},
    "kernels": {"tensor", "base"},
    "kv_cache/index": {"base"},
    "kv_cache": {"tensor", "base"},
    "attention": {"kernels", "tensor", "kv_cache", "base"},
    "models": {"attention", "kernels", "tensor", "kv_cache", "formats", "base"},
    "sampling": {"kernels", "tensor", "base", "tenon"},
    "text": {"base", "formats"},
    "scheduler": {"tenon", "kv_cache/index", "base"},
    "engine": {"tenon", "base", "tensor", "kernels", "kv_cache", "kv_cache/index", "attention", "models", "sampling",
               "scheduler"},
    "server": {"tenon", "text", "base"},
    "backends.cc": {"attention", "kernels", "sampling", "tensor", "base"},
    "cli": {"tenon", "server", "text", "base", "models", "attention", "kernels", "tensor", "kv_cache"},
}

# Everything that needs CUDA lies below these.
CUDA_FOLDERS = {"tensor/cuda", "kernels/cuda", "sampling/cuda", "attention/cuda", "attention/backends/flash",
                "attention/backends/flashinfer"}

# third-party prefix: the folders or files where it may appear.
THIRD_PARTY = {
    "cuda": CUDA_FOLDERS,
    "cublas": {"kernels/cuda"},
    "flashinfer/": {"attention/backends/flashinfer"},
    "cutlass/": {"attention/backends/flashinfer"},
    "cute/": {"attention/backends/flashinfer"},
    "boost/": {"server/http_server.cc"},
    "CLI/": {"cli/main.cc"},
    "spdlog/": {"base/log.cc"},
    "prometheus/": {"server"},
    "pcre2": {"text"},
    "utf8proc": {"text"},
    "yaml-cpp/": {"cli"},
    "editline/": {"cli"},
    "hwy/": {"attention", "kernels"},
    "nlohmann/": {"text", "server", "formats", "models", "cli"},
}

INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]')


def folder_of(path: str) -> str:
    if path.startswith("kv_cache/index/"):
        return "kv_cache/index"
    return path.split("/")[0]


def violations():
    for root in ("src", "include"):
        for file in sorted((ROOT / root).rglob("*")):
            if file.suffix not in (".h", ".cc", ".cu", ".cuh"):
                continue
            relative = file.relative_to(ROOT / root).as_posix()
            own = folder_of(relative)
            if own not in ALLOWED:
                yield f"{root}/{relative}: folder '{own}' is not in the table"
                continue
            # Highway includes -inl.h headers once an instruction set; their guard toggles.
            once = "HWY_TARGET_TOGGLE" if relative.endswith("-inl.h") else "#pragma once"
            if file.suffix in (".h", ".cuh") and once not in file.read_text():
                yield f"{root}/{relative}: no {once}"
            for number, line in enumerate(file.read_text().splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                target = match.group(2)
                where = f"{root}/{relative}:{number}"
                if ".." in target.split("/"):
                    yield f"{where}: relative include {target}"
                for prefix, places in THIRD_PARTY.items():
                    if match.group(1) == '"' and prefix == "cuda":
                        continue
                    if target.startswith(prefix) and not any(
                            relative == place or relative.startswith(place + "/") for place in places):
                        yield f"{where}: {target} belongs in {', '.join(sorted(places))}"
                if match.group(1) == '"' and not target.startswith("hwy/"):
                    needed = folder_of(target)
                    if needed != own and needed not in ALLOWED[own]:
                        yield f"{where}: '{own}' may not know '{needed}' ({target})"


def main() -> None:
    found = list(violations())
    print("\n".join(found) if found else "include directions: ok")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
