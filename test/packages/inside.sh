#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The part of run.sh that runs in the separate root, in which the packages are installed.
set -eEuo pipefail
export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C
trap 'echo "failed: $BASH_SOURCE:$LINENO: $BASH_COMMAND" >&2' ERR

log() { echo "packages: $*"; }
fail() {
  echo "packages: $*" >&2
  exit 1
}
# Container images omit manual pages; this root must include them.
rm -f /etc/dpkg/dpkg.cfg.d/*
deb() { echo /packages/lockstep_"$1"-1_*.deb; }
rpm_of() { echo /packages/lockstep-"$1"-1.*.rpm; }

# Starts a node with the command of the unit, and sets $node to its process ID.
start_node() {
  setpriv --reuid lockstep --regid lockstep --clear-groups \
    /usr/bin/lockstep serve --config /etc/lockstep/node.yaml >/tmp/node.log 2>&1 &
  node=$!
  for _ in $(seq 1200); do
    if lockstep status --addr 127.0.0.1:7420 >/dev/null 2>&1; then return; fi
    kill -0 "$node" || break
    sleep 0.1
  done
  cat /tmp/node.log >&2
  fail "the node did not start"
}
stop_node() {
  kill -TERM "$node"
  wait "$node"
}
configure_standalone() {
  cat >/etc/lockstep/node.yaml <<'Y'
# changed by the operator
node: {name: kept}
data: {dir: /var/lib/lockstep}
listen: 127.0.0.1:7420
coordinator: {type: none}
disk: {low-watermark: 1MiB}
memory: {budget: 128MiB}
Y
}
owner() { stat -c '%U:%G %a' "$1"; }
is() { [[ $2 == "$3" ]] || fail "$1 is '$2', expected '$3'"; }

installed() {
  is "lockstep version" "$(lockstep version --output json | tr -d ' ' | grep -o '"version":"[^"]*"')" "\"version\":\"v$1\""
  is "the owner of the data" "$(owner /var/lib/lockstep)" "lockstep:lockstep 700"
  is "the owner of the configuration" "$(owner /etc/lockstep)" "root:lockstep 750"
  is "the owner of node.yaml" "$(owner /etc/lockstep/node.yaml)" "root:lockstep 640"
  is "the user's shell" "$(getent passwd lockstep | cut -d: -f7)" /usr/sbin/nologin
  zcat /usr/share/man/man1/lockstep-serve.1.gz | grep "lockstep v$1" >/dev/null # grep -q would end zcat
  if command -v man >/dev/null; then
    man -l /usr/share/man/man1/lockstep-queue-create.1.gz 2>/dev/null | grep -e --max-deliveries >/dev/null
  fi
  # The unit must run the program that the package installs.
  is "ExecStart" "$(sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/lockstep.service)" \
    "/usr/bin/lockstep serve --config /etc/lockstep/node.yaml"
}

# Checks shell completion, which runs the program, by simulating bash.
completes() {
  local answer
  answer=$(bash -c '
    _get_comp_words_by_ref() { words=("${COMP_WORDS[@]}"); cword=$COMP_CWORD; cur=${COMP_WORDS[COMP_CWORD]}; prev=${COMP_WORDS[COMP_CWORD-1]}; }
    __ltrim_colon_completions() { :; }
    source /usr/share/bash-completion/completions/lockstep
    COMP_WORDS=(lockstep switcho) COMP_CWORD=1 COMP_LINE="lockstep switcho" COMP_POINT=16 COMP_TYPE=9
    __start_lockstep 2>/dev/null; echo "${COMPREPLY[@]}"')
  [[ $answer == *switchover* ]] || fail "bash completes switcho to '$answer'"
}

verify_units() {
  command -v systemd-analyze >/dev/null || {
    log "SKIPPED systemd-analyze verify: not installed in this root"
    return
  }
  local output
  # Messages about other units of the machine are ignored.
  output=$(systemd-analyze verify --man=no /usr/lib/systemd/system/lockstep.service /usr/lib/systemd/system/lockstep-witness.service 2>&1 |
    grep -i lockstep || true)
  [[ -z $output ]] || fail "systemd-analyze verify: $output"
  log "systemd-analyze verify accepts the units"
}

# Tests the life cycle of a package: $1 installs a version, $2 removes the package.
life() {
  local install=$1 remove=$2
  "$install" 0.1.0
  installed 0.1.0
  completes
  configure_standalone
  start_node
  lockstep queue create orders --timeout 2m >/dev/null
  lockstep publish orders kept --timeout 2m >/dev/null

  "$install" 0.2.0
  installed 0.2.0
  head -n 1 /etc/lockstep/node.yaml | grep -q 'changed by the operator'
  kill -0 "$node" || fail "the upgrade stopped the node"
  is "the release that runs" "$(readlink "/proc/$node/exe")" "/usr/bin/lockstep (deleted)"
  lockstep status --addr 127.0.0.1:7420 --timeout 2m >/dev/null
  stop_node
  start_node
  is "the release that runs" "$(readlink "/proc/$node/exe")" /usr/bin/lockstep
  lockstep browse orders --timeout 2m | grep kept >/dev/null || fail "message lost"
  stop_node

  "$remove"
  [[ ! -e /usr/bin/lockstep && -s /var/lib/lockstep/page.db ]] || fail "removal kept the program or deleted the data"
}

install_deb() { dpkg --install "$(deb "$1")" >/tmp/dpkg.log 2>&1 </dev/null || { cat /tmp/dpkg.log >&2; return 1; }; }
remove_deb() { dpkg --remove lockstep >/tmp/dpkg.log 2>&1; }

life_of_deb() {
  life install_deb remove_deb
  grep -q 'changed by the operator' /etc/lockstep/node.yaml || fail "removal deleted node.yaml"
  touch /etc/lockstep/node-a-key.pem
  dpkg --purge lockstep >/tmp/dpkg.log 2>&1
  [[ ! -e /etc/lockstep/node.yaml && -e /etc/lockstep/node-a-key.pem ]] || fail "purge kept node.yaml or deleted a key"
  [[ -s /var/lib/lockstep/page.db ]] || fail "purge deleted the messages"
  is "the owner of the data" "$(owner /var/lib/lockstep)" "lockstep:lockstep 700"
  grep -q 'keeping the messages' /tmp/dpkg.log
  # After a reinstallation, the node has its messages. After a purge with LOCKSTEP_PURGE_DATA, nothing remains.
  install_deb 0.2.0
  configure_standalone
  start_node
  lockstep browse orders --timeout 2m | grep kept >/dev/null
  stop_node
  verify_units
  rm /etc/lockstep/node-a-key.pem
  LOCKSTEP_PURGE_DATA=yes dpkg --purge lockstep >/tmp/dpkg.log 2>&1
  [[ ! -e /var/lib/lockstep && ! -e /etc/lockstep ]] || fail "not deleted: $(ls -d /var/lib/lockstep /etc/lockstep 2>/dev/null)"
  ! getent passwd lockstep >/dev/null || fail "user not deleted"
  log "the .deb was installed, upgraded under a running node, removed and purged"
}

install_rpm() { rpm --dbpath /tmp/rpmdb --upgrade --nodeps "$(rpm_of "$1")" >/tmp/rpm.log 2>&1 || { cat /tmp/rpm.log >&2; return 1; }; }
remove_rpm() { rpm --dbpath /tmp/rpmdb --erase --nodeps lockstep >/tmp/rpm.log 2>&1; }

life_of_rpm() {
  if ! command -v rpm >/dev/null; then
    log "SKIPPED the .rpm: rpm is not installed in this root"
    return
  fi
  life install_rpm remove_rpm
  grep -q 'changed by the operator' /etc/lockstep/node.yaml.rpmsave || fail "removal deleted node.yaml"
  log "the .rpm was installed, upgraded under a running node, and removed"
}

life_of_deb
life_of_rpm
