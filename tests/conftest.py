"""Shared by all tests: one thread per process, as on a rank; and ranks that stay warm from one test to the next."""

from collections.abc import Iterator

import pytest
import torch

from pdlab.launch import Ranks


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def pool() -> Iterator[Ranks]:
    """Four ranks, for tests that do not break them."""
    with Ranks(4) as ranks:
        yield ranks
