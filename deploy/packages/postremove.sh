#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs after the files are removed. dpkg passes "remove", "purge" or "upgrade", rpm the number of remaining versions.
# Messages are removed only on request: LOCKSTEP_PURGE_DATA=yes dpkg --purge lockstep.
set -e

case "$1" in
  remove | 0)
    if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
    ;;
  purge)
    rmdir /var/lib/lockstep /var/lib/lockstep-witness 2>/dev/null || true # only if empty
    if [ "${LOCKSTEP_PURGE_DATA:-no}" = yes ]; then
      rm -rf /var/lib/lockstep /var/lib/lockstep-witness
    fi
    # Keys and certificates do not belong to this package.
    [ ! -d /etc/lockstep ] || rmdir /etc/lockstep 2>/dev/null ||
      echo "lockstep: keeping the remaining files in /etc/lockstep"
    if [ -d /var/lib/lockstep ] || [ -d /var/lib/lockstep-witness ]; then
      # The user remains: a reused ID would give another user access to the messages.
      echo "lockstep: keeping the messages in /var/lib/lockstep* and their owner, the user lockstep; to delete them:"
      echo "lockstep:   rm -r /var/lib/lockstep /var/lib/lockstep-witness && userdel lockstep"
    elif getent passwd lockstep >/dev/null; then
      userdel lockstep || true
    fi
    ;;
esac
