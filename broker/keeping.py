"""Keeping the last values over a restart: when they are put together, and how they come back.

Put together in slices between turns of the loop, so that nothing waits for it; written by the background
thread. Inventories are kept in a file of their own, which is written only when one of them has changed.
"""

from pathlib import Path

import msgspec

from xce.broker.background import Background
from xce.broker.core import cache as cached
from xce.broker.core.location import Location
from xce.broker.core.machine import Broker
from xce.broker.logs import log
from xce.broker.store import cache as caches

KEEP_S = 60.0
SLICE, STEPS = 200, 30
"""So many locations in one go (about a millisecond), or more where that would take more steps."""


class _About(msgspec.Struct, omit_defaults=True):
    """What a cache says of its broker."""

    epoch: int = 0
    types: str = ""
    """Digest of the types that its values were taken under."""


class _Saving:
    """The last values on their way to the files."""

    def __init__(self, broker: Broker) -> None:
        self._left: list[Location] = list(broker.state.supply.locations.values())
        self.values: dict[str, bytes] = {}
        self.bodies: dict[str, bytes] = {}
        self.digests: dict[str, dict[str, str]] = {}
        """Of the inventories in `bodies`."""

    def step(self, count: int) -> bool:
        """Put some more together; True when it is whole."""
        some, self._left = self._left[:count], self._left[count:]
        for place in some:
            if place.feeds:
                self.values[place.key] = msgspec.msgpack.encode(cached.cached(place))
            if place.bodies:
                self.bodies[place.key] = msgspec.msgpack.encode(cached.cached_bodies(place))
                held = place.view.inventories
                self.digests[place.key] = {name: held[name].digest for name in place.bodies}
        return not self._left


class Keeper:
    """The two cache files of one broker."""

    def __init__(self, directory: Path, background: Background, *, proc_root: str = "/proc") -> None:
        self._proc_root = proc_root
        self._values = caches.Cache(directory / "values.cache", background)
        self._bodies = caches.Cache(directory / "inventories.cache", background)
        now = caches.stamp(proc_root)
        self._old_values = caches.read(directory / "values.cache", now=now, say=log.warning)
        self._old_bodies = caches.read(directory / "inventories.cache", now=now, say=log.warning)
        self.last_epoch = _about(self._old_values).epoch
        """Of the broker that wrote them; 0 when that is not known."""
        self._due = now.monotonic_ms / 1000 + KEEP_S
        self._saving: _Saving | None = None
        self._kept: dict[str, dict[str, str]] = {}

    def restore(self, broker: Broker) -> None:
        """Put back what the last broker knew; its age is what the clocks say."""
        values, bodies = self._old_values, self._old_bodies
        self._old_values = self._old_bodies = None
        if values is None:
            return
        now = caches.stamp(self._proc_root)
        age_ms = caches.age_ms(values.written, now)
        shift_s = (now.monotonic_ms - age_ms - values.written.monotonic_ms) / 1000
        same_types = _about(values).types == broker.state.types.digest
        place = msgspec.msgpack.Decoder(cached.CachedPlace).decode
        inventories = msgspec.msgpack.Decoder(cached.CachedBodies).decode
        try:
            for data in values.entries.values():
                cached.restore(
                    broker.state,
                    place(data),
                    shift_s=shift_s,
                    now=now.monotonic_ms / 1000,
                    same_types=same_types,
                )
            for data in bodies.entries.values() if bodies else ():
                cached.restore_bodies(broker.state, inventories(data))
        except (msgspec.MsgspecError, ValueError, OverflowError) as error:  # another version's vocabulary
            log.warning("cannot use all of the last values: %s; they come as the hosts report", error)
            return
        log.info("took up the last values of %d locations, %.0f s old", len(values.entries), age_ms / 1000)

    def second(self, broker: Broker, now: float) -> None:
        """Keep some more, when it is time."""
        if self._saving is None and now >= self._due:
            self._due = now + KEEP_S
            self._saving = _Saving(broker)
        count = max(SLICE, len(broker.state.supply.locations) // STEPS)
        if self._saving is not None and self._saving.step(count):
            self._keep(broker, self._saving)
            self._saving = None

    def keep_all(self, broker: Broker) -> None:
        """At the end: everything as it is now."""
        saving = _Saving(broker)
        while not saving.step(SLICE):
            pass
        self._keep(broker, saving)

    def _keep(self, broker: Broker, saving: _Saving) -> None:
        about = msgspec.msgpack.encode(
            _About(epoch=broker.state.changes.epoch, types=broker.state.types.digest)
        )
        revision = broker.state.journal.ledger.revision
        now = caches.stamp(self._proc_root)
        self._values.save(saving.values, about=about, revision=revision, now=now)
        if saving.digests != self._kept and self._bodies.save(
            saving.bodies, about=about, revision=revision, now=now
        ):
            self._kept = saving.digests


def _about(values: caches.Cached | None) -> _About:
    try:
        return msgspec.msgpack.decode(values.about, type=_About) if values else _About()
    except msgspec.MsgspecError:
        return _About()
