"""Sets tracing up from its configuration; says what to install if that is missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kubelet_trio.model import Meter, WallClock
from kubelet_trio.tracing.endpoint import DEFAULT_ENDPOINT, target_of

if TYPE_CHECKING:
    from kubelet_trio.tracing.exporter import SpanReceiver
    from kubelet_trio.tracing.sender import Tracing

EXTRA = "tracing"


@dataclass(frozen=True, slots=True)
class TracingConfig:
    """What is traced, as whose spans, and where to."""

    node_name: str
    endpoint: str = ""  # "": localhost:4317
    rate: int = 0  # traces that are sampled, of a million that begin on this node
    version: str = ""


def make_tracing(
    config: TracingConfig, clock: WallClock, meter: Meter, receiver: SpanReceiver | None = None
) -> Tracing:
    """Return the tracing of an agent, not running yet.

    Args:
        config: what is traced.
        clock: the times of spans.
        meter: counts exported and dropped spans.
        receiver: takes the spans; None: the one of the endpoint.

    Raises `EndpointError` (a ValueError), and ValueError if OpenTelemetry is not installed.
    """
    try:
        from kubelet_trio.tracing.exporter import OtlpReceiver
        from kubelet_trio.tracing.queue import SpanQueue
        from kubelet_trio.tracing.sender import Tracing
        from kubelet_trio.tracing.tracer import Tracer
    except ModuleNotFoundError as exc:
        if not (exc.name or "").startswith("opentelemetry"):
            raise
        raise ValueError(
            f"tracing is configured and needs an optional package: "
            f"pip install 'kubelet-trio[{EXTRA}]' ({exc})"
        ) from exc
    if receiver is None:
        receiver = OtlpReceiver(target_of(config.endpoint or DEFAULT_ENDPOINT), config.version)
    tracer = Tracer(config.node_name, config.rate, config.version, clock, SpanQueue(meter))
    return Tracing(tracer, receiver, meter)
