"""An event as the API has it."""

from __future__ import annotations

from lightkube.models import core_v1, meta_v1

from kubelet_trio.model import Event, to_datetime


def event_object(
    event: Event,
    metadata: meta_v1.ObjectMeta,
    source: core_v1.EventSource,
    *,
    count: int,
    first: float,
    last: float,
) -> core_v1.Event:
    """Return a core/v1 Event of `count` occurrences between two Unix times."""
    involved = event.involved
    return core_v1.Event(
        metadata=metadata,
        involvedObject=core_v1.ObjectReference(
            apiVersion="v1",
            kind=involved.kind,
            name=involved.name,
            namespace=involved.namespace or None,
            uid=involved.uid or None,
            fieldPath=involved.field_path or None,
        ),
        type=event.type,
        reason=event.reason,
        message=event.message,
        count=count,
        firstTimestamp=to_datetime(first),
        lastTimestamp=to_datetime(last),
        source=source,
        reportingComponent=source.component,
        reportingInstance=source.host,
    )
