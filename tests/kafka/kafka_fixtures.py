"""Fixtures that need a real broker. A folder of tests takes them over by importing them in its conftest.py."""

from __future__ import annotations

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kafka_cluster import NoBroker, shared_broker

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["kafka_bootstrap"]


@pytest.fixture(scope="session")
def kafka_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker's address, shared by all tests of the run: use topics and groups of your own.

    MEGURI_TEST_BOOTSTRAP names one to use; else one is started.
    """
    if find_spec("confluent_kafka") is None:
        pytest.skip("no confluent-kafka (the extra `kafka`)")
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    folder = Path(tempfile.gettempdir()) / f"meguri-broker-{run}" if run else tmp_path_factory.mktemp("broker")
    try:
        with shared_broker(folder) as bootstrap:
            yield bootstrap
    except NoBroker as problem:
        pytest.skip(str(problem))
