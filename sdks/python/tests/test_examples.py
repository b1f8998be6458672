from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from nodes import Cluster

HERE = Path(__file__).resolve().parents[1]


def run(node: Cluster, *arguments: str) -> str:
    environment = {**os.environ, "LOWKEY_ENDPOINTS": ",".join(node.urls)}
    found = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr
    assert found.stderr == ""
    return found.stdout


@pytest.mark.parametrize(
    ("example", "says"),
    [
        ("singleton_job", r"(?s)runs the job.*writes page 2.*: done"),
        ("leader", r"(?s)leader is one.*one leads no more.*leader is two.*two leads no more"),
        ("fenced_writer", r"(?s)by the first holder.*by the second holder.*refused: report"),
        ("watcher", r"(?s)(ACQUIRED.*RELEASED.*){3}"),
    ],
)
def test_an_example_does_what_it_says(node: Cluster, example: str, says: str) -> None:
    assert re.search(says, run(node, str(HERE / "examples" / f"{example}.py")))


def test_the_first_example_of_the_readme(node: Cluster) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (HERE / "README.md").read_text(), re.S)
    assert re.fullmatch(r"held, with token \d+\nreleased\n", run(node, "-c", blocks[0]))


def test_every_block_of_the_readme_is_python() -> None:
    for block in re.findall(r"```python\n(.*?)```", (HERE / "README.md").read_text(), re.S):
        # `await` outside of a function is for asyncio's own prompt.
        body = "\n    ".join(block.splitlines())
        compile(f"async def example():\n    {body}\n", "README.md", "exec")
