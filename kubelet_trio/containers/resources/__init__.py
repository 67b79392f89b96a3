"""What containers, pods and cgroups are limited to, computed from requests and limits."""
