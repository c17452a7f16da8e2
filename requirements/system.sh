#!/bin/sh
# Sees to the one thing that the wheels of cpu.lock need from the machine: libnuma.so.1.
# Installs Debian's libnuma1 when it is missing and we are root; otherwise says the command.
set -eu
python=${1:-python3}

has_libnuma() {
  "$python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null
}

has_libnuma && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "libnuma.so.1 is missing (vLLM's CPU build needs it): installing the package libnuma1"
  apt-get update -qq && apt-get install -y -qq --no-install-recommends libnuma1 >/dev/null
  has_libnuma && exit 0
fi
echo "libnuma.so.1 is missing, and vLLM's CPU build needs it. Install it, then run make again:" >&2
echo "    sudo apt-get install libnuma1      (Fedora, RHEL: sudo dnf install numactl-libs)" >&2
exit 1
