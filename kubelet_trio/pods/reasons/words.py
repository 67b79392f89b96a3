"""Reasons as sentences, for those who show no table."""

from __future__ import annotations

from collections.abc import Iterator

from kubelet_trio.durations import span_words
from kubelet_trio.pods.reasons.types import PodWhy


def sentences(why: PodWhy) -> Iterator[str]:
    """Yield what keeps a pod from what is wanted, a sentence each."""
    for reason in why.reasons:
        if reason.blocks:
            span = span_words(reason.since, reason.until, why.now)
            who = f"{reason.container}: " if reason.container else ""
            yield f"{who}{reason.text}{f' ({span})' if span else ''}"
