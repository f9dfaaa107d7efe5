# SPDX-License-Identifier: Apache-2.0
"""A real pair of nodes: `lockstep dev`, with node processes that can be killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from waiting import BOUND


class Port:
    """A free port of 127.0.0.1, reserved for a node.

    The socket is bound, but never listens. A node can bind to the same port, because both sockets set SO_REUSEADDR,
    but the system does not assign the port to other connections.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"

    def close(self) -> None:
        self._socket.close()


class Nodes:
    """Two nodes or one, for commands of the CLI."""

    addresses: list[str]

    def __init__(self, binary: str, environment: dict[str, str] | None = None) -> None:
        self.binary = binary
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
        self._environment |= environment or {}

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.binary, *arguments], capture_output=True, text=True, check=False, env=self._environment
        )

    def roles(self) -> dict[str, str]:
        """Return the role reported by each node, except nodes that do not respond."""
        out = {}
        for address in self.addresses:
            p = self.command("status", "--addr", address, "--timeout", "2s", "--output", "json")
            for node in json.loads(p.stdout or "{}").get("nodes", []):
                if node.get("address") == address:
                    out[address] = f"{node.get('role')} {node.get('standby', '')}".strip()
        return out

    def wait_in_sync(self) -> None:
        deadline = time.monotonic() + BOUND
        while time.monotonic() < deadline:
            if sorted(self.roles().values()) == ["active in-sync", "standby"]:
                return
            self.check_alive()
            time.sleep(0.05)
        raise AssertionError(f"the pair is not in sync within {BOUND} s: {self.roles()}")

    def check_alive(self) -> None:
        """Fail if a process has ended unexpectedly."""
        raise NotImplementedError


class Pair(Nodes):
    def __init__(self, binary: str, directory: Path, collector: str = "") -> None:
        """Start the nodes. They send sampled spans to the collector, host:port, if given."""
        super().__init__(binary)
        environment = dict(os.environ)
        if collector:
            environment |= {
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector}",
                "OTEL_BSP_SCHEDULE_DELAY": "100",
                "OTEL_TRACES_SAMPLER": "parentbased_always_off",
            }
        self._ports = [Port() for _ in range(2)]
        self.addresses = [p.address for p in self._ports]
        self._log = (directory / "dev.log").open("wb")
        self._dev = subprocess.Popen(
            [
                binary,
                "dev",
                "--coordinator=raft",
                "--amqp=",  # the default ports of AMQP and of the console may be in use
                "--console=",
                f"--dir={directory / 'data'}",
                f"--listen-a={self.addresses[0]}",
                f"--listen-b={self.addresses[1]}",
            ],
            stdout=self._log,
            stderr=self._log,
            env=environment,
        )
        self.wait_in_sync()

    def close(self) -> None:
        self._dev.send_signal(signal.SIGTERM)
        try:
            self._dev.wait(BOUND)
        finally:
            self._dev.kill()
            self._dev.wait()
            self._log.close()
            for p in self._ports:
                p.close()

    def check_alive(self) -> None:
        if self._dev.poll() is not None:
            raise AssertionError("lockstep dev has ended: " + Path(self._log.name).read_text())

    def kill(self, address: str) -> None:
        """Kill the node with SIGKILL; `lockstep dev` restarts it after 5 seconds."""
        self.signal(address, signal.SIGKILL)

    def signal(self, address: str, number: signal.Signals) -> None:
        """Send a signal to the process of the node."""
        listing = subprocess.run(
            ["ps", "-A", "-ww", "-o", "pid=,ppid=,command="], capture_output=True, text=True, check=True
        )
        for line in listing.stdout.splitlines():
            pid, parent, command = line.split(None, 2)
            if int(parent) == self._dev.pid and " serve " in command and f"listen={address}" in command:
                os.kill(int(pid), number)
                return
        raise AssertionError(f"no process of a node listens on {address}")
