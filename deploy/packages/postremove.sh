#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# After the files are gone. dpkg calls it with "remove", "purge" or "upgrade", rpm with the number of versions that stay.
# Messages are never removed unless that is asked for: LOCKSTEP_PURGE_DATA=yes dpkg --purge lockstep.
set -e

case "$1" in
  remove | 0)
    if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
    ;;
  purge)
    rmdir /var/lib/lockstep /var/lib/lockstep-witness 2>/dev/null || true # an empty one holds nothing
    if [ "${LOCKSTEP_PURGE_DATA:-no}" = yes ]; then
      rm -rf /var/lib/lockstep /var/lib/lockstep-witness
    fi
    # Keys and certificates were put there by somebody else than this package.
    [ ! -d /etc/lockstep ] || rmdir /etc/lockstep 2>/dev/null ||
      echo "lockstep: what is left in /etc/lockstep is kept"
    if [ -d /var/lib/lockstep ] || [ -d /var/lib/lockstep-witness ]; then
      # The user stays: its number must not become the number of another one, who would own the messages.
      echo "lockstep: the messages in /var/lib/lockstep* are kept, and the user lockstep, who owns them; remove them by hand:"
      echo "lockstep:   rm -r /var/lib/lockstep /var/lib/lockstep-witness && userdel lockstep"
    elif getent passwd lockstep >/dev/null; then
      userdel lockstep || true
    fi
    ;;
esac
