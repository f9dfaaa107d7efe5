# SPDX-License-Identifier: Apache-2.0
"""Nodes with TLS: a pair with a witness that requires client certificates, and a node that requires none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import IO

from pair import Nodes, Port
from waiting import BOUND


class SecureNodes(Nodes):
    """Processes of `lockstep serve` with certificates of `lockstep cert init`.

    Args:
        binary: The lockstep binary.
        directory: For all data.
        standalone: One node that does not require client certificates; otherwise a pair that requires them.
    """

    def __init__(self, binary: str, directory: Path, *, standalone: bool = False) -> None:
        self.certs = directory / "certs"
        super().__init__(
            binary,
            {
                "LOCKSTEP_CLIENT_TLS_CA": str(self.certs / "ca.pem"),
                "LOCKSTEP_CLIENT_TLS_CERT": str(self.certs / "client.pem"),
                "LOCKSTEP_CLIENT_TLS_KEY": str(self.certs / "client-key.pem"),
            },
        )
        self.done("cert", "init", str(self.certs))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, list[str]] = {}
        self._log: IO[bytes] = (directory / "nodes.log").open("wb")
        names = ["a"] if standalone else ["a", "b"]
        self._ports = [Port() for _ in range(5)]
        addresses = [p.address for p in self._ports]
        self.addresses = addresses[: len(names)]
        voters = ",".join(addresses[2:])
        coordinator = ["--coordinator-type=none", "--tls-client-auth=none"]
        if not standalone:
            witness = [f"--data-dir={directory / 'witness'}", f"--listen={addresses[4]}", f"--voters={voters}"]
            self._start("witness", ["witness", *witness])
        for i, name in enumerate(names):
            if not standalone:
                coordinator = [
                    "--coordinator-type=raft",
                    f"--coordinator-raft-listen={addresses[2 + i]}",
                    f"--coordinator-raft-voters={voters}",
                ]
            common = [
                f"--data-dir={directory / name}",
                f"--node-name={name}",
                f"--listen={self.addresses[i]}",
                f"--tls-ca={self.certs / 'ca.pem'}",
                f"--tls-cert={self.certs / f'node-{name}.pem'}",
                f"--tls-key={self.certs / f'node-{name}-key.pem'}",
                "--disk-low-watermark=16MiB",
                "--memory-budget=128MiB",
                "--wal-segment-bytes=16MiB",
            ]
            self._start(self.addresses[i], ["serve", *coordinator, *common])

    def done(self, *arguments: str) -> str:
        p = self.command(*arguments)
        assert p.returncode == 0, p.stdout + p.stderr
        return p.stdout

    def close(self) -> None:
        for p in self._processes.values():
            p.kill()
        for p in self._processes.values():
            p.wait(BOUND)
        self._log.close()
        for port in self._ports:
            port.close()

    def check_alive(self) -> None:
        for p in self._processes.values():
            if p.poll() is not None:
                raise AssertionError("a process has ended: " + Path(self._log.name).read_text())

    def kill(self, address: str) -> None:
        """Kill the node with SIGKILL."""
        self._processes[address].kill()
        self._processes[address].wait(BOUND)

    def start(self, address: str) -> None:
        """Restart a killed node."""
        self._start(address, self._commands[address])

    def _start(self, name: str, command: list[str]) -> None:
        self._commands[name] = command
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
        self._processes[name] = subprocess.Popen(
            [self.binary, *command], stdout=self._log, stderr=self._log, env=environment
        )
