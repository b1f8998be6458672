from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from nodes import Cluster

import lowkey

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


ROOT = HERE.parents[1]


@pytest.mark.parametrize("page", [HERE / "README.md", *sorted((ROOT / "docs/guides").glob("*.md"))])
def test_every_block_of_a_page_is_python(page: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    assert len(blocks) >= 3 or page.name not in ("README.md", "python.md")
    for block in blocks:
        # `await` outside of a function is for asyncio's own prompt.
        body = "\n    ".join(block.splitlines())
        compile(f"async def example():\n    {body}\n", str(page), "exec")


def test_the_version_is_in_step() -> None:
    pattern = re.compile(r'^version = "(.*)"$', re.M)
    (own,) = pattern.findall((HERE / "pyproject.toml").read_text())
    (service, *_) = pattern.findall((ROOT / "Cargo.toml").read_text())
    # Python writes a candidate as 1.2.3rc4, Rust as 1.2.3-rc.4.
    assert own == lowkey.__version__ == service.replace("-rc.", "rc")
