#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs after the files are installed. dpkg passes "configure" and the previous version, if any; rpm passes the number of
# installed versions: 1 on installation, 2 on upgrade.
set -e

case "$1" in
  configure) if [ -n "$2" ]; then upgrade=yes; else upgrade=no; fi ;;
  1) upgrade=no ;;
  2) upgrade=yes ;;
  *) exit 0 ;;
esac

if command -v systemd-sysusers >/dev/null; then
  systemd-sysusers lockstep.conf
elif ! getent passwd lockstep >/dev/null; then
  useradd --system --user-group --home-dir /var/lib/lockstep --no-create-home --shell /usr/sbin/nologin lockstep
fi
# The package does not own this directory, so that removing the package keeps the data.
[ -d /var/lib/lockstep ] || install -d -o lockstep -g lockstep -m 0700 /var/lib/lockstep

if [ "$upgrade" = no ]; then
  chgrp lockstep /etc/lockstep /etc/lockstep/node.yaml /etc/lockstep/witness.env
  chmod 0750 /etc/lockstep
fi

running=no
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || true
  if systemctl is-active --quiet lockstep.service; then running=yes; fi
fi

# A node is never restarted here: both machines may be upgraded at the same time, and if both nodes stop, no node serves.
# `lockstep restart` restarts the standby, waits until it is in sync, hands over, and restarts the other node.
if [ "$upgrade" = no ]; then
  echo "lockstep: edit /etc/lockstep/node.yaml, then start the node: systemctl enable --now lockstep"
elif [ "$running" = yes ]; then
  echo "lockstep: the node runs the previous release until it is restarted. When both machines are upgraded:"
  echo "lockstep:   lockstep restart       rolling restart without interruption"
fi
