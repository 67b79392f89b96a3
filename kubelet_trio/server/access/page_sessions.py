"""Who may act on the node page: one-time logins, and the sessions that they become.

The page's port has no authentication, and every user of the machine can reach it. So whoever wants
to act proves the rights of the control socket first: `kubelet-trio ui` gets a login there, and the
page exchanges it for a session. A session is known by two secrets together:

- the *cookie*, which scripts cannot read. Browsers do not tell ports apart in cookies: any other
  server on this host name may be sent it, so it opens nothing alone.
- the *key*, which scripts of this origin alone can read (host and port), and must send along
  themselves. A page of another origin has none, so it cannot act with the browser's cookie (CSRF).

Only digests are kept, and looked up: the time that takes tells nothing of a secret. Everything is
bounded, is in memory, and ends with the agent.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

LOGIN_SECONDS = 60.0
IDLE_SECONDS = 30 * 60.0
LIFETIME_SECONDS = 8 * 3600.0
MOST_LOGINS = 8  # not used yet; a new one drops the oldest
MOST_SESSIONS = 8  # likewise
MOST_TERMINALS = 8  # of a session, at one time
_BYTES = 32  # of each secret


class SessionRefusedError(Exception):
    """A login or an action is refused; the message is for the person at the page.

    `is_rate`: there were too many, and it may be tried again later.
    """

    def __init__(self, message: str, *, is_rate: bool = False) -> None:
        super().__init__(message)
        self.is_rate = is_rate


class Rate:
    """At most `most` in `seconds`. Pure: told what time it is."""

    def __init__(self, most: int, seconds: float) -> None:
        self._past: deque[float] = deque(maxlen=most)
        self._seconds = seconds

    def take(self, now: float) -> bool:
        """Return whether one more may happen now, and count it if so."""
        past = self._past
        if len(past) == past.maxlen and now - past[0] < self._seconds:
            return False
        past.append(now)
        return True


@dataclass(eq=False, slots=True)
class Session:
    """Someone who may act. `name` is for logs and no part of a secret."""

    name: str
    cookie: bytes  # digests
    key: bytes
    began: float
    used: float
    actions: Rate = field(default_factory=lambda: Rate(30, 60.0))
    terminals: set[trio.CancelScope] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Login:
    """What a login became: a session, and its two secrets, which exist nowhere else."""

    session: Session
    cookie: str
    key: str


class PageSessions:
    """The logins and sessions of one agent. `now` is monotonic, in seconds."""

    def __init__(self, now: Callable[[], float] = trio.current_time) -> None:
        self._now = now
        self._logins: dict[bytes, float] = {}  # digest -> until when, the oldest first
        self._sessions: dict[bytes, Session] = {}  # by the digest of the cookie
        self._failures = Rate(10, 60.0)

    def new_login(self) -> str:
        """Return a token that is exchanged for a session once, within `LOGIN_SECONDS`."""
        token = secrets.token_urlsafe(_BYTES)
        now = self._now()
        self._logins = {digest: end for digest, end in self._logins.items() if end > now}
        _make_room(self._logins, MOST_LOGINS)
        self._logins[_digest(token)] = now + LOGIN_SECONDS
        return token

    def log_in(self, token: str) -> Login:
        """Exchange a token for a new session. Raises `SessionRefusedError`.

        Failures are counted, and a valid token is accepted all the same: guessing keeps nobody out.
        """
        now = self._now()
        if self._logins.pop(_digest(token), 0.0) <= now:
            self.note_failure()
            raise SessionRefusedError(
                "this login is not valid (any more): it works once, and for "
                f"{LOGIN_SECONDS:.0f} s; run `kubelet-trio ui` again"
            )
        self._drop_ended(now)
        while len(self._sessions) >= MOST_SESSIONS:
            self.end(min(self._sessions.values(), key=lambda session: session.used))
        # All new: nothing that the browser had before becomes a secret of the session (fixation).
        cookie, key = secrets.token_urlsafe(_BYTES), secrets.token_urlsafe(_BYTES)
        session = Session(secrets.token_hex(4), _digest(cookie), _digest(key), now, now)
        self._sessions[session.cookie] = session
        return Login(session, cookie, key)

    def note_failure(self) -> None:
        """Count a wrong secret. Raises `SessionRefusedError` where there were too many."""
        if not self._failures.take(self._now()):
            raise SessionRefusedError("too many failures; try again in a minute", is_rate=True)

    def find(self, cookies: Iterable[str], key: str) -> Session | None:
        """Return the session of one of the cookies and of the key; None if there is none."""
        now = self._now()
        self._drop_ended(now)
        wanted = _digest(key)
        for cookie in cookies:
            session = self._sessions.get(_digest(cookie))
            if session is not None and secrets.compare_digest(session.key, wanted):
                return session
        return None

    def act(self, session: Session) -> None:
        """Note that a session acts. Raises `SessionRefusedError`: it does so too often."""
        now = self._now()
        if not session.actions.take(now):
            raise SessionRefusedError("too many actions; try again in a minute", is_rate=True)
        session.used = now

    def end(self, session: Session) -> None:
        """End a session, with its terminals."""
        self._sessions.pop(session.cookie, None)
        for terminal in session.terminals:
            terminal.cancel()

    @contextmanager
    def terminal(self, session: Session) -> Iterator[None]:
        """Cancel the block when the session ends. Raises `SessionRefusedError`: it has too many."""
        if len(session.terminals) >= MOST_TERMINALS:
            raise SessionRefusedError(
                f"{MOST_TERMINALS} terminals of this session are open; close one", is_rate=True
            )
        # trio's deadlines are of `trio.current_time`.
        left = max(0.0, session.began + LIFETIME_SECONDS - self._now())
        with trio.CancelScope(deadline=trio.current_time() + left) as scope:
            session.terminals.add(scope)
            try:
                if session.cookie not in self._sessions:
                    scope.cancel()  # it ended since the request was admitted
                yield
            finally:
                session.terminals.discard(scope)
                session.used = self._now()

    def _drop_ended(self, now: float) -> None:
        for session in list(self._sessions.values()):
            # A terminal ends by itself when it is idle.
            is_idle = now - session.used >= IDLE_SECONDS and not session.terminals
            if is_idle or now - session.began >= LIFETIME_SECONDS:
                self.end(session)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _make_room(logins: dict[bytes, float], most: int) -> None:
    while len(logins) >= most:
        del logins[next(iter(logins))]
