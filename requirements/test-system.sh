#!/bin/sh
# Sees to what the tests need from the machine beyond Python: sshd and ip (tests/hosts), and a browser that
# draws the page of `bench --report` (tests/view).
# Installs Debian's packages of them when they are missing and we are root; otherwise says the command. No
# sshd is started: the tests start their own, with throw-away keys.
set -eu

missing() {
  [ -x /usr/sbin/sshd ] || echo openssh-server
  command -v ip >/dev/null || [ -x /usr/sbin/ip ] || [ -x /sbin/ip ] || echo iproute2
  command -v ssh-agent >/dev/null || echo openssh-client
  command -v unshare >/dev/null || echo util-linux
  command -v chromium >/dev/null || echo chromium fonts-liberation
}

wanted=$(missing | tr '\n' ' ')
[ -z "$wanted" ] && exit 0
shells="zsh fish tcsh" # optional: tests send commands through every login shell that there is
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "the tests need $wanted: installing"
  # policy-rc.d with 101 is Debian's way to install a service without starting it.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
  fi
  # shellcheck disable=SC2086
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends $wanted >/dev/null
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends $shells >/dev/null 2>&1 || true
  # Nor at the next boot, where there is a systemd.
  command -v systemctl >/dev/null &&
    systemctl disable --quiet --now ssh.service ssh.socket 2>/dev/null || true
  [ -z "$(missing)" ] && exit 0
fi
echo "the tests need $wanted; install it, then run make again:" >&2
echo "    sudo apt-get install $wanted" >&2
exit 1
