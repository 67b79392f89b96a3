"""The child of one socket: registers the plugin behind it, and keeps it registered.

    ask (GetInfo) -> check -> wait while a newer socket holds the name -> the handler validates and
    registers -> notify the plugin (NotifyRegistrationStatus) -> the handler's task keeps it

Its parent starts one for each socket, and another when the socket is replaced. A failure is
reported to the plugin if it can be reached, logged once, and tried again with a growing delay; it
ends this registration only.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from kubelet_trio.model import Backoff, get_logger
from kubelet_trio.plugins.claims import Claim, NameClaims
from kubelet_trio.plugins.errors import RegistrationError
from kubelet_trio.plugins.names import check_offer, shown
from kubelet_trio.plugins.scan import SocketIdentity
from kubelet_trio.plugins.types import PluginHandler, PluginOffer

log = get_logger()

# exponentialbackoff in pkg/util/goroutinemap.
_FIRST_DELAY = 0.5
_LONGEST_DELAY = 122.0
_LONGEST_TEXT = 1000  # characters of a handler's error
# Upstream's texts begin so (operation_generator.go in pluginmanager): drivers' logs show them.
_ERROR = "RegisterPlugin error -- "

HandlerOf = Callable[[str], PluginHandler | None]


class PluginSocket:
    """A socket of the registry, and the registration of the plugin behind it."""

    def __init__(
        self,
        path: str,
        identity: SocketIdentity,
        handler_of: HandlerOf,
        claims: NameClaims,
    ) -> None:
        """Begin without a registration.

        Args:
            path: of the socket.
            identity: differs from that of an earlier or later socket at the same path.
            handler_of: returns the handler of a type, None if there is none. Called for each
                registration: it may import what only plugins of that type need.
            claims: the registered names.
        """
        self._path = path
        self._identity = identity
        self._handler_of = handler_of
        self._claims = claims
        self._offer: PluginOffer | None = None
        self._state = "not asked yet"
        self._problem = ""  # the one in the log

    def note(self) -> str:
        """Return the plugin and its state, for the tree."""
        return self._state if self._offer is None else f"{self._offer}: {self._state}"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Register the plugin, again after each failure; until cancelled."""
        task_status.started()
        retry = Backoff(_FIRST_DELAY, _LONGEST_DELAY, reset_after=_LONGEST_DELAY)
        while True:
            try:
                await self._register()
            except RegistrationError as exc:
                self._report(str(exc))
                with trio.move_on_after(retry.next_delay(trio.current_time())):
                    # The handler may have refused it because of the plugin that has the name.
                    await self._claims.wait_given_up(self._offer)

    async def _register(self) -> None:
        """Register the plugin; return when a newer socket has taken its name, and lost it again.

        Raises `RegistrationError`.
        """
        # Not at the top: gRPC and the messages are needed from the first socket on.
        from kubelet_trio.plugins.registrar import ask_info

        self._offer = None
        info = await ask_info(self._path)
        handler = self._handler_of(info.type)
        if handler is None:
            kind = shown(info.type)
            await self._refuse(
                f"{_ERROR}no handler registered for plugin type: {kind} at socket {self._path}"
            )
            return
        try:
            self._offer = offer = check_offer(
                info.type, info.name, info.endpoint, info.supported_versions, self._path
            )
            claim = Claim(self._path, self._identity, offer, handler.is_exclusive)
            if (holder := self._claims.holder(claim)) is None:
                handler.validate(offer.name, offer.endpoint, offer.versions)
        except ValueError as exc:
            await self._refuse(f"{_ERROR}plugin validation failed with err: {exc}")
            return
        if holder is None:
            await self._hold(claim, handler)
        self._state = "replaced by a newer socket of that name"
        await self._claims.wait_turn(claim)

    async def _refuse(self, text: str) -> None:
        """Notify the plugin why it is not registered. Raises `RegistrationError`, always."""
        from kubelet_trio.plugins.registrar import notify_status

        try:
            await notify_status(self._path, text)
        except RegistrationError as exc:
            raise RegistrationError(f"{text}; the plugin could not be notified: {exc}") from exc
        raise RegistrationError(text)

    async def _hold(self, claim: Claim, handler: PluginHandler) -> None:
        """Run the handler's task; return when a newer socket has the name.

        Raises `RegistrationError`.
        """
        offer, task, problem = claim.offer, _HandlerTask(handler, claim.offer), ""
        self._state = "registering"
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(task.run, nursery.cancel_scope)
                await task.registered.wait()
                if self._claims.take(claim):
                    problem = await self._announce(offer)
                    if not problem:
                        await claim.lost.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._claims.release(claim)
            if task.registered.is_set():
                log.info("plugin.deregistered", socket=self._path, plugin=str(offer))
        if task.failure and not task.registered.is_set():
            await self._refuse(f"{_ERROR}plugin registration failed with err: {task.failure}")
        if task.failure or problem:
            raise RegistrationError(task.failure or problem)

    async def _announce(self, offer: PluginOffer) -> str:
        """Notify the plugin that it is registered; return why that failed, or ""."""
        from kubelet_trio.plugins.registrar import notify_status

        try:
            await notify_status(self._path, "")
        except RegistrationError as exc:
            return f"{_ERROR}failed to send registration status at socket {self._path}, err: {exc}"
        self._state, self._problem = "registered", ""
        log.info("plugin.registered", socket=self._path, plugin=str(offer), endpoint=offer.endpoint)
        return ""

    def _report(self, problem: str) -> None:
        """Show a failure in the tree, and log it unless it is the last one again."""
        self._state = problem
        if problem != self._problem:
            self._problem = problem
            log.warning("plugin.not_registered", socket=self._path, error=problem)


class _HandlerTask:
    """The task of a handler for one plugin; it is the `task_status` of `run_plugin`."""

    def __init__(self, handler: PluginHandler, offer: PluginOffer) -> None:
        self._handler = handler
        self._offer = offer
        self.registered = trio.Event()
        self.failure = ""

    def started(self, _value: None = None) -> None:
        """Note that the plugin is registered."""
        self.registered.set()

    async def run(self, scope: trio.CancelScope) -> None:
        """Run the handler; then cancel `scope`."""
        offer = self._offer
        try:
            await self._handler.run_plugin(
                offer.name, offer.endpoint, offer.versions, task_status=self
            )
            self.failure = "the plugin's handler ended"
        except* self._handler.errors as group:
            self.failure = _text(group)
        scope.cancel()


def _text(exc: BaseException) -> str:
    """Return the text of the first error of a group, cut: a plugin may have written it."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return str(exc)[:_LONGEST_TEXT]
