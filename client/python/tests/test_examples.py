# SPDX-License-Identifier: Apache-2.0
"""Runs the examples, in the order of the documentation, and the code blocks of README.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from pair import Pair
from waiting import BOUND

TOP = Path(__file__).parents[1]


def run(pair: Pair, *command: str) -> str:
    env = {**os.environ, "LOCKSTEP_ADDR": ",".join(pair.addresses)}
    p = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, timeout=BOUND, check=False)
    assert p.returncode == 0, p.stdout + p.stderr
    assert p.stderr == ""
    return p.stdout


def test_examples(pair: Pair) -> None:
    assert "stored 1000 more" in run(pair, str(TOP / "examples" / "publish.py"))
    received, deadline = 0, time.monotonic() + BOUND
    while received < 1002:  # on a slow machine, the example may end before it has received all messages
        received += int(run(pair, str(TOP / "examples" / "consume.py")).removeprefix("received "))
        assert time.monotonic() < deadline
    assert received == 1002
    assert run(pair, str(TOP / "examples" / "transaction.py")) == "cooked: 0 2 4 6 8 10 12 14 16 18\n"
    assert run(pair, str(TOP / "examples" / "request.py")) == "item 17 costs 42\n"
    assert {p.name for p in (TOP / "examples").glob("*.py")} == {
        "publish.py",
        "consume.py",
        "transaction.py",
        "request.py",
    }


def test_readme(pair: Pair, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (TOP / "README.md").read_text(), re.S)
    assert blocks
    for i, block in enumerate(blocks):
        file = tmp_path / f"block{i}.py"
        file.write_text(block.replace('["127.0.0.1:7420", "127.0.0.1:7421"]', repr(pair.addresses)))
        run(pair, str(file))
