"""The shim: the process that watches one container, and outlives the agent.

It is a program of its own (`python -I -S -E`, see `launcher`) that uses the standard library
only; its modules import nothing but each other. The agent starts it once, as the *nursery*: a
warm interpreter that forks a shim for every start request, so all shims share its memory. When
the agent ends, the nursery reads the end of its stdin and exits; the shims stay.

A shim is the parent and the child subreaper of one container's processes. It writes the
container's log, serves the socket `control` in the container's directory (its working
directory), and writes `exit.json` once the main process has ended and its descendants are dead.
Only the shim reaps them, so no PID that it signals can have been reused. If the shim is killed,
the kernel kills the main process, and the agent finds the other processes by the container id in
their environment (`process_state.kill_marked`).
"""
