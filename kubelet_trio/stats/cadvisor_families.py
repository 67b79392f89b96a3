"""The families of `/metrics/cadvisor` whose samples have no labels of their own, in order."""

from __future__ import annotations

SCRAPE_ERROR = "1 if there was an error while getting container metrics, 0 otherwise"
_LAST_SEEN = "Last time a container was seen by the exporter"
_CREATED = "Container creation time since unix epoch in seconds."
_STARTED = "Start time of the container since unix epoch in seconds."
_HEALTH = "The result of the container's health check"
_PROCESSES = "Number of processes running inside the container."
_THREADS = "Number of threads running inside the container"
_THREADS_MAX = "Maximum number of threads allowed inside the container, infinity if value is zero"
_FDS = "Number of open file descriptors for the container."
_SOCKETS = "Number of open sockets for the container."
_ULIMITS = (
    "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice"
)
FS_USAGE = "Number of bytes that are consumed by the container on this filesystem."
FS_LIMIT = "Number of bytes that can be consumed by the container on this filesystem."
FS_INODES = "Number of Inodes"
FS_INODES_FREE = "Number of available Inodes"
_LOAD = "Value of container cpu load average over the last 10 seconds."
_LOAD_D = "Value of container cpu load.d average over the last 10 seconds."
_USAGE = "Current memory usage in bytes, including all memory regardless of when it was accessed"
_FAILURES = "Cumulative count of memory allocation failures."
_OOM = "Count of out of memory events observed for the container"
_STALLED = "Total time duration no tasks in the container could make progress due to {} congestion."
_WAITING = "Total time duration tasks in the container have waited due to {} congestion."
# The states of taskstats (struct cgroupstats), and the letters of /proc/<pid>/stat for them.
TASK_STATES = (
    ("sleeping", "SI"),
    ("running", "R"),
    ("stopped", "Tt"),
    ("uninterruptible", "D"),
    ("iowaiting", ""),
)


def _failure(kind: str, scope: str) -> str:
    return f',failure_type="{kind}",scope="{scope}"'


# Name, kind, help, labels besides the subject's, and whether there is a timestamp: cAdvisor writes
# specs without one. `_values` has the order.
_CPU_FAMILIES = (
    ("container_spec_cpu_period", "gauge", "CPU period of the container.", "", False),
    ("container_spec_cpu_quota", "gauge", "CPU quota of the container.", "", False),
    ("container_spec_cpu_shares", "gauge", "CPU share of the container.", "", False),
    *(
        (f"container_cpu_{name}", kind, help_text, more, True)
        for name, kind, help_text, more in (
            (
                "user_seconds_total",
                "counter",
                "Cumulative user cpu time consumed in seconds.",
                "",
            ),
            (
                "system_seconds_total",
                "counter",
                "Cumulative system cpu time consumed in seconds.",
                "",
            ),
            (
                "usage_seconds_total",
                "counter",
                "Cumulative cpu time consumed in seconds.",
                ',cpu="total"',
            ),
            ("load_average_10s", "gauge", _LOAD, ""),
            ("load_d_average_10s", "gauge", _LOAD_D, ""),
            (
                "cfs_periods_total",
                "counter",
                "Number of elapsed enforcement period intervals.",
                "",
            ),
            (
                "cfs_throttled_periods_total",
                "counter",
                "Number of throttled period intervals.",
                "",
            ),
            (
                "cfs_throttled_seconds_total",
                "counter",
                "Total time duration the container has been throttled.",
                "",
            ),
            ("cfs_burst_periods_total", "counter", "Number of periods when burst occurs.", ""),
            ("cfs_burst_seconds_total", "counter", "Total time duration when burst occurs.", ""),
        )
    ),
)
NO_CPU: tuple[None, ...] = (None,) * len(_CPU_FAMILIES)
_MEMORY_FAMILIES = (
    *(
        (f"container_spec_memory_{name}_bytes", "gauge", f"{words} for the container.", "", False)
        for name, words in (
            ("limit", "Memory limit"),
            ("swap_limit", "Memory swap limit"),
            ("reservation_limit", "Memory reservation limit"),
        )
    ),
    *(
        (f"container_memory_{name}", kind, help_text, more, True)
        for name, kind, help_text, more in (
            ("cache", "gauge", "Number of bytes of page cache memory.", ""),
            ("rss", "gauge", "Size of RSS in bytes.", ""),
            ("kernel_usage", "gauge", "Size of kernel memory allocated in bytes.", ""),
            ("mapped_file", "gauge", "Size of memory mapped files in bytes.", ""),
            ("swap", "gauge", "Container swap usage in bytes.", ""),
            ("failcnt", "counter", "Number of memory usage hits limits", ""),
            ("usage_bytes", "gauge", _USAGE, ""),
            ("max_usage_bytes", "gauge", "Maximum memory usage recorded in bytes", ""),
            ("working_set_bytes", "gauge", "Current working set in bytes.", ""),
            ("total_active_file_bytes", "gauge", "Current total active file in bytes.", ""),
            ("total_inactive_file_bytes", "gauge", "Current total inactive file in bytes.", ""),
            *(
                ("failures_total", "counter", _FAILURES, _failure(kind, scope))
                for scope in ("container", "hierarchy")
                for kind in ("pgfault", "pgmajfault")
            ),
        )
    ),
    ("container_oom_events_total", "counter", _OOM, "", True),
)
NO_MEMORY: tuple[None, ...] = (None,) * len(_MEMORY_FAMILIES)
FAMILIES = (
    ("container_last_seen", "gauge", _LAST_SEEN, "", True),
    ("container_creation_time_seconds", "gauge", _CREATED, "", False),
    ("container_start_time_seconds", "gauge", _STARTED, "", False),
    ("container_health_state", "gauge", _HEALTH, "", True),
    *_CPU_FAMILIES,
    *_MEMORY_FAMILIES,
    *(
        (
            f"container_pressure_{resource}_{kind}_seconds_total",
            "counter",
            help_text.format(words),
            "",
            True,
        )
        for resource, words in (("cpu", "CPU"), ("memory", "memory"), ("io", "IO"))
        for kind, help_text in (("stalled", _STALLED), ("waiting", _WAITING))
    ),
    ("container_processes", "gauge", _PROCESSES, "", True),
    ("container_threads", "gauge", _THREADS, "", True),
    ("container_threads_max", "gauge", _THREADS_MAX, "", True),
    ("container_file_descriptors", "gauge", _FDS, "", True),
    ("container_sockets", "gauge", _SOCKETS, "", True),
    ("container_ulimits_soft", "gauge", _ULIMITS, ',ulimit="max_open_files"', True),
    *(
        ("container_tasks_state", "gauge", "Number of tasks in given state", f',state="{s}"', True)
        for s, _ in TASK_STATES
    ),
)

# Names and help texts of the families with an interface, and of those with a device, in the order
# of their values.
NETWORK_FAMILIES = tuple(
    zip(
        *(
            (f"container_network_{name}_total", f"Cumulative count of {words}")
            for name, words in (
                ("receive_bytes", "bytes received"),
                ("receive_packets", "packets received"),
                ("receive_packets_dropped", "packets dropped while receiving"),
                ("receive_errors", "errors encountered while receiving"),
                ("transmit_bytes", "bytes transmitted"),
                ("transmit_packets", "packets transmitted"),
                ("transmit_packets_dropped", "packets dropped while transmitting"),
                ("transmit_errors", "errors encountered while transmitting"),
            )
        ),
        strict=True,
    )
)
IO_FAMILIES = tuple(
    zip(
        ("container_fs_reads_bytes_total", "Cumulative count of bytes read"),
        ("container_fs_reads_total", "Cumulative count of reads completed"),
        ("container_fs_writes_bytes_total", "Cumulative count of bytes written"),
        ("container_fs_writes_total", "Cumulative count of writes completed"),
        strict=True,
    )
)
BLKIO = "container_blkio_device_usage_total"
