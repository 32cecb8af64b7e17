"""The bus on Apache Kafka 4.0 or newer, by confluent-kafka; the extra `kafka` installs it.

Only this package's modules import the client; `require_client` says what is missing before they do.
"""

from __future__ import annotations

from importlib.util import find_spec

from meguri_common.errors import ParameterError

__all__ = ["require_client"]


def require_client() -> None:
    """Refuse to go on without the client.

    Raises:
        ParameterError: confluent-kafka isn't installed; says how to.
    """
    if find_spec("confluent_kafka") is None:
        msg = "Kafka needs a client that isn't installed: pip install 'meguri[kafka]'"
        raise ParameterError(msg)
