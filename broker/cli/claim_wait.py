"""Waiting for claims and bindings: until all are ready, or until one never will be."""

import time
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from xce.broker.cli import output
from xce.broker.cli.options import ENDED, GOOD, TROUBLE
from xce.broker.client import Client
from xce.model import human
from xce.model.claim import BindingState
from xce.model.message import BindingView, ClaimView

View: TypeAlias = ClaimView | BindingView | None
"""None: it is forgotten, since it had ended."""
_NEVER_READY = {BindingState.FAILED, BindingState.RELEASED, BindingState.RELEASING}


def decided(client: Client, names: Sequence[str], seconds: float) -> dict[str, View]:
    """Claims and bindings as they are once all are ready, or one never will be, or the time is over."""
    deadline, views = time.monotonic() + seconds, dict[str, View]()
    watch = client.watch()
    try:
        while (rest := deadline - time.monotonic()) > 0:
            watch.next(rest)
            if watch.mirror is not None:
                claims, bindings = watch.mirror.claims, watch.mirror.bindings
                views = {name: claims.get(name) or bindings.get(name) for name in names}
                if verdict(names, views) != TROUBLE:
                    break
    finally:
        watch.close()
    return views


def verdict(names: Sequence[str], views: Mapping[str, View]) -> int:
    """The exit status: all are ready, one never will be, or neither."""
    states = {_state(views[name]) if name in views else BindingState.PENDING for name in names}
    if states & _NEVER_READY:
        return ENDED
    return GOOD if states == {BindingState.READY} else TROUBLE


def told(names: Sequence[str], views: Mapping[str, View], seconds: float) -> int:
    """Print how each is; gives the exit status."""
    for name in names:
        words = _words(views[name]) if name in views else "the broker did not say"
        print(human.printable(f"{name} {words}"))
    status = verdict(names, views)
    if status == TROUBLE:
        output.aside(f"not ready within {seconds:g} s; xce-broker claim show says how far each is")
    return status


def _words(view: View) -> str:
    if isinstance(view, BindingView):
        binding = view.binding
        return f"{binding.host} {binding.state.value} {view.note or binding.reason}".rstrip()
    return f"{view.state} {view.reason}".rstrip() if view is not None else "gone"


def _state(view: View) -> BindingState:
    if isinstance(view, BindingView):
        return view.binding.state
    return BindingState(view.state) if view is not None else BindingState.RELEASED
