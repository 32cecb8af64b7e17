"""Internal messages between services: row kinds, their Arrow schemas, and the envelope around a record batch."""
