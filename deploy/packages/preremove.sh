#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Before the files go. dpkg calls it with "remove" or "upgrade", rpm with the number of versions that stay: 0 on a removal.
# An upgrade leaves the node running.
set -e

case "$1" in
  remove | 0) ;;
  *) exit 0 ;;
esac

# SIGTERM: an active hands over to its standby first.
if [ -d /run/systemd/system ]; then
  systemctl disable --now lockstep.service lockstep-witness.service || true
fi
