"""The broker that the tests start is there."""

from __future__ import annotations

import pytest

admin = pytest.importorskip("confluent_kafka.admin")


def test_it_answers(kafka_bootstrap: str) -> None:
    assert admin.AdminClient({"bootstrap.servers": kafka_bootstrap}).list_topics(timeout=10).brokers
