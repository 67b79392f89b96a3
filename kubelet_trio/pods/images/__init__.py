"""Bring the images of pods onto the node: names, pull policies, pulls and their back-off."""

from kubelet_trio.pods.images.puller import (
    EnsuredImage,
    ImageError,
    ImagePuller,
)
from kubelet_trio.pods.images.rate import PullRate

__all__ = [
    "EnsuredImage",
    "ImageError",
    "ImagePuller",
    "PullRate",
]
