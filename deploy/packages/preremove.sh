#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs before the files are removed. dpkg passes "remove" or "upgrade", rpm the number of remaining versions: 0 on
# removal.
# An upgrade does not stop the node.
set -e

case "$1" in
  remove | 0) ;;
  *) exit 0 ;;
esac

# SIGTERM: an active hands over to its standby first.
if [ -d /run/systemd/system ]; then
  systemctl disable --now lockstep.service lockstep-witness.service || true
fi
