from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from nodes import Cluster, binary

from lowkey import Client


def _make(size: int, is_proxied: bool = False) -> Cluster:
    if binary() is None:
        text = "no lowkey program: build it, or name it by LOWKEY_BIN"
        if os.environ.get("LOWKEY_REQUIRE_ALL") == "1":
            pytest.fail(text)
        pytest.skip(text)
    return Cluster(size, is_proxied)


@pytest.fixture(scope="session")
def node() -> Iterator[Cluster]:
    """One node that all tests share: they use names of their own."""
    cluster = _make(1)
    yield cluster
    cluster.close()


@pytest.fixture
def own_node() -> Iterator[Cluster]:
    """One node for a test that does something to it."""
    cluster = _make(1)
    yield cluster
    cluster.close()


@pytest.fixture
def proxied() -> Iterator[Cluster]:
    """One node behind a proxy that can hold answers back."""
    cluster = _make(1, is_proxied=True)
    yield cluster
    cluster.close()


@pytest.fixture
def three() -> Iterator[Cluster]:
    """Three nodes for a test that does something to them."""
    cluster = _make(3)
    yield cluster
    cluster.close()


@pytest.fixture
def client(node: Cluster) -> Iterator[Client]:
    with Client(node.urls) as client:
        yield client
