"""For programs that publish events: validated, batched by partition, delivery checked.

A fetcher in ten lines:

    from meguri_common.sdk import Publisher

    with Publisher.connect("localhost:9092") as publisher:
        for page in crawl():
            publisher.page(url=page.url, fetched_at=page.ended, status=page.status, links=page.hrefs)
"""

from meguri_common.sdk.batching import BUNDLE_BYTES, Batcher, Packed
from meguri_common.sdk.grouping import group_of_event, group_of_url, pages_partition
from meguri_common.sdk.publisher import Publisher
from meguri_common.sdk.transport import BusTransport, Transport

__all__ = [
    "BUNDLE_BYTES",
    "Batcher",
    "BusTransport",
    "Packed",
    "Publisher",
    "Transport",
    "group_of_event",
    "group_of_url",
    "pages_partition",
]
