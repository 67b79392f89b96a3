"""Logins and sessions of the node page: once, for a time, a few, and by two secrets together."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from kubelet_trio.server import PageSessions
from kubelet_trio.server.access.page_sessions import (
    IDLE_SECONDS,
    LIFETIME_SECONDS,
    LOGIN_SECONDS,
    MOST_LOGINS,
    MOST_SESSIONS,
    MOST_TERMINALS,
    Login,
    Rate,
    SessionRefusedError,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> PageSessions:
    return PageSessions(clock)


def logged_in(sessions: PageSessions) -> Login:
    return sessions.log_in(sessions.new_login())


def is_in(sessions: PageSessions, login: Login) -> bool:
    return sessions.find([login.cookie], login.key) is login.session


def test_a_login_works_once(sessions: PageSessions) -> None:
    token = sessions.new_login()
    assert is_in(sessions, sessions.log_in(token))
    with pytest.raises(SessionRefusedError, match="works once"):
        sessions.log_in(token)


@pytest.mark.parametrize(("later", "works"), [(LOGIN_SECONDS - 1, True), (LOGIN_SECONDS, False)])
def test_a_login_works_for_a_time(
    sessions: PageSessions, clock: Clock, later: float, works: bool
) -> None:
    token = sessions.new_login()
    clock.now += later
    if works:
        sessions.log_in(token)
        return
    with pytest.raises(SessionRefusedError):
        sessions.log_in(token)


def test_a_few_logins_wait_and_the_oldest_makes_room(sessions: PageSessions) -> None:
    tokens = [sessions.new_login() for _ in range(MOST_LOGINS + 1)]
    with pytest.raises(SessionRefusedError):
        sessions.log_in(tokens[0])
    assert all(sessions.log_in(token) for token in tokens[1:])


def test_a_session_is_known_by_cookie_and_key_together(sessions: PageSessions) -> None:
    one, other = logged_in(sessions), logged_in(sessions)
    assert is_in(sessions, one)
    # Another server of this host may have set cookies of the same name.
    assert sessions.find(["planted", one.cookie], one.key) is one.session
    for cookies, key in (
        ([one.cookie], other.key),
        ([one.cookie], ""),
        ([], one.key),
        ([one.key], one.cookie),
        ([""], ""),
    ):
        assert sessions.find(cookies, key) is None


def test_the_secrets_are_kept_as_digests_alone(sessions: PageSessions) -> None:
    token = sessions.new_login()
    waiting = repr(vars(sessions))
    login = sessions.log_in(token)
    kept = waiting + repr(vars(sessions))
    assert token not in kept
    assert login.cookie not in kept
    assert login.key not in kept
    assert login.session.name in kept


def test_a_session_that_is_idle_ends(sessions: PageSessions, clock: Clock) -> None:
    login = logged_in(sessions)
    clock.now += IDLE_SECONDS - 1
    sessions.act(login.session)
    clock.now += IDLE_SECONDS - 1
    assert is_in(sessions, login)  # which is no use of it
    clock.now += 1
    assert not is_in(sessions, login)


def test_a_session_that_is_used_ends_too(sessions: PageSessions, clock: Clock) -> None:
    login, began = logged_in(sessions), clock.now
    while clock.now - began < LIFETIME_SECONDS - IDLE_SECONDS:
        clock.now += IDLE_SECONDS / 2
        sessions.act(login.session)
    clock.now = began + LIFETIME_SECONDS - 1
    sessions.act(login.session)
    assert is_in(sessions, login)
    clock.now += 1
    assert not is_in(sessions, login)


def test_a_few_sessions_are_kept_and_the_one_used_least_recently_makes_room(
    sessions: PageSessions, clock: Clock
) -> None:
    logins = []
    for _ in range(MOST_SESSIONS):
        clock.now += 1
        logins.append(logged_in(sessions))
    clock.now += 1
    sessions.act(logins[0].session)
    logged_in(sessions)
    assert [is_in(sessions, login) for login in logins] == [True, False] + [True] * 6


def test_guessing_is_slowed_and_keeps_nobody_out(sessions: PageSessions, clock: Clock) -> None:
    told = []
    for _ in range(12):
        with pytest.raises(SessionRefusedError) as refused:
            sessions.log_in("guess")
        told.append(refused.value.is_rate)
    assert told == [False] * 10 + [True] * 2
    assert logged_in(sessions)
    clock.now += 60
    sessions.note_failure()


def test_actions_have_a_rate(sessions: PageSessions, clock: Clock) -> None:
    session = logged_in(sessions).session
    for _ in range(30):
        sessions.act(session)
    with pytest.raises(SessionRefusedError, match="too many actions"):
        sessions.act(session)
    clock.now += 60
    sessions.act(session)


def test_a_rate_is_over_any_span_of_its_length() -> None:
    rate = Rate(2, 10.0)
    assert [rate.take(now) for now in (0, 9, 9.5, 10, 18, 19)] == [
        *(True, True, False, True, False, True)
    ]


async def test_a_terminal_ends_with_its_session(autojump_clock: MockClock) -> None:
    sessions = PageSessions()
    login = logged_in(sessions)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_end_after, sessions, login, 5.0)
        with sessions.terminal(login.session):
            await trio.sleep_forever()
    assert trio.current_time() == 5
    # One that was admitted before its session ended does not begin.
    with sessions.terminal(login.session):
        await trio.sleep_forever()


async def _end_after(sessions: PageSessions, login: Login, seconds: float) -> None:
    await trio.sleep(seconds)
    sessions.end(login.session)


async def test_an_open_terminal_keeps_its_session_until_the_end_of_its_life(
    autojump_clock: MockClock,
) -> None:
    sessions = PageSessions()
    login = logged_in(sessions)
    with sessions.terminal(login.session):
        await trio.sleep(2 * IDLE_SECONDS)
        assert is_in(sessions, login)
        await trio.sleep_forever()
    assert trio.current_time() == LIFETIME_SECONDS
    assert not is_in(sessions, login)


async def test_a_session_has_a_few_terminals(autojump_clock: MockClock) -> None:
    sessions = PageSessions()
    session = logged_in(sessions).session
    async with trio.open_nursery() as nursery:
        for _ in range(MOST_TERMINALS):
            nursery.start_soon(_hold, sessions, session)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(SessionRefusedError, match="terminals"), sessions.terminal(session):
            pass
        nursery.cancel_scope.cancel()
    with sessions.terminal(session):  # a place was given back
        await trio.lowlevel.checkpoint()


async def _hold(sessions: PageSessions, session: object) -> None:
    with sessions.terminal(session):  # type: ignore[arg-type]
        await trio.sleep_forever()
