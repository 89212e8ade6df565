"""The shell around the core: what its owner does wrong costs neither the socket nor the next effect."""

from pathlib import Path

from tests.agent.pad import Pad
from xce.agent.core import Core, Identity
from xce.agent.effect import Effect, Shown
from xce.agent.link import Link
from xce.linux.loop import Loop
from xce.model.link import Phase


def test_an_effect_that_fails_costs_itself(tmp_path: Path) -> None:
    errors: list[Exception] = []
    loop = Loop(on_error=lambda error, _callback: errors.append(error))
    core = Core(Identity(role="agent", name="n1"), Pad(), now=loop.now(), random=lambda low, _high: low)

    def fail(effect: Effect) -> None:
        raise LookupError(repr(effect))

    link = Link(
        loop,
        core,
        endpoint=f"ipc://{tmp_path}/none",
        credentials=lambda: (None, None),
        on_effect=fail,
    )
    core._effects.append(Shown())
    link.turn()
    assert [type(error) for error in errors] == [LookupError]
    assert core.phase is Phase.CONNECTING, "the socket was opened all the same"
    loop.turn(0.01)
    link.close()
    loop.close()
