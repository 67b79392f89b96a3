"""The images of a pod: references, pull policies, pulls and their back-off."""
