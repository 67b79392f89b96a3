"""The wiring of the records of pulls: for whom there are any."""

from __future__ import annotations

from kubelet_trio.agent.settings import AgentSettings, Seams
from kubelet_trio.credentials import ImageAccess
from kubelet_trio.model import Purpose


def make_image_access(settings: AgentSettings, seams: Seams) -> ImageAccess | None:
    """Return who says which pod may use which image; None where everybody may use all."""
    if settings.pull_verification is None:
        return None
    return ImageAccess(
        settings.node.root_dir,
        seams.runtime,
        seams.offload_for(Purpose.PULLS),
        seams.clock,
        settings.pull_verification,
    )
