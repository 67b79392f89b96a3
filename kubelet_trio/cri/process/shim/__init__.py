"""The shim: what stays with a container while agents come and go.

A program of its own (`python -I -S -E`, see `launcher`) on nothing but the standard library,
so its modules import each other only. The agent starts it once, as the *nursery* that
holds the interpreter ready: for every start request it forks a shim, so that all shims share
their memory. When the agent ends, the nursery reads the end of its input and goes; the
shims stay.

A shim is the parent and the child subreaper of one container. It keeps the container's
output as a log, answers on the socket `control` in the container's directory (its working
directory), and writes `exit.json` once the main process has ended and all that came of it
is dead. Nobody else reaps, so a PID that it signals is never another's. If it is killed
itself, the kernel kills the main process, and the next agent that looks finds the rest by
the container's mark in their environment.
"""
