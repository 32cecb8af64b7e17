"""The bus on Apache Kafka 4.0 or newer, by confluent-kafka; the extra `kafka` installs it.

Only this package's modules import the client: `meguri_common.kafka.kafka_module` says what is missing before they do.
"""
