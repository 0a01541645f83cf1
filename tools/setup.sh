#!/usr/bin/env bash
# Installs what is missing: Debian packages and the default model; with --tests what the tests read, too. Does nothing,
# quickly, when everything is there. Needs the network only while something is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  g++ make cmake ninja-build ccache pkg-config python3 python3-pip
  libboost1.81-dev nlohmann-json3-dev libfmt-dev libspdlog-dev libcli11-dev prometheus-cpp-dev
  libpcre2-dev libutf8proc-dev libyaml-cpp-dev libhwy-dev libedit-dev libgtest-dev libgmock-dev libbenchmark-dev
)

missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  install="apt-get install -y --no-install-recommends ${missing[*]}"
  if [ "$(id -u)" = 0 ]; then
    sudo=
  elif command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
    sudo=sudo  # on a terminal it may ask for a password
    sudo true || { echo "sudo was refused. Run as root: apt-get update && $install" >&2; exit 1; }
  else
    echo "Tenon needs Debian packages that are not installed, and neither root nor a sudo that needs no password is available. Run as root:" >&2
    echo "  apt-get update && $install" >&2
    exit 1
  fi
  echo "Installing ${#missing[@]} Debian packages: ${missing[*]}"
  log=$(mktemp)
  if ! { $sudo apt-get update && $sudo env DEBIAN_FRONTEND=noninteractive $install; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "The installation failed; the command was: $install" >&2
    rm -f "$log"
    exit 1
  fi
  rm -f "$log"
fi

lists=(tools/assets.txt)
if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
  lists+=(tools/cuda_assets.txt)
fi
[ "${1:-}" != --tests ] || lists+=(tools/test_assets.txt)
exec python3 tools/fetch_assets.py "${lists[@]}"
