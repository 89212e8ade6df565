"""An agent that makes bindings ready at once, or as a test says: the real link, and nothing on the node."""

from tests.fakes.fed_agent import FedAgent
from xce.model import message as m
from xce.model.claim import ENDED, BindingState, Chosen, holdings_digest
from xce.wire import codec
from xce.wire.dealer import Dealer


class ClaimAgent(FedAgent):
    """`works`: it does what it is ordered; bindings of claims in `broken` fail. `prepared` counts each."""

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]
        self.works = True
        self.broken: set[str] = set()
        self.prepared: dict[str, int] = {}
        self.holds: dict[str, m.BindingReport] = {}
        self.standing: dict[str, str] = {}
        self._tombstones: set[str] = set()
        self._unheard: set[str] = set()

    def __enter__(self) -> "ClaimAgent":
        super().__enter__()
        return self

    def _hello(self) -> m.Hello:
        live = [(name, one.state) for name, one in self.holds.items() if one.state not in ENDED]
        hello = super()._hello()
        return m.Hello(
            protocol=hello.protocol,
            role=hello.role,
            name=hello.name,
            nonce=hello.nonce,
            digest=hello.digest,
            bindings=holdings_digest(live),
        )

    def _take(self, message: m.FromBroker, dealer: Dealer) -> None:
        super()._take(message, dealer)
        match message:
            case m.Welcome():
                self._unheard = set(self.holds)
                if message.bindings:
                    self._tell(dealer, full=True)
            case m.BindingPrepare():
                self._prepare(message)
            case m.BindingRelease():
                self._release(message.binding)
            case m.BindingStanding():
                self._heard(message.bindings)
        if self._unheard:
            self._tell(dealer, full=False)

    def _report(self, dealer: Dealer, *, full: bool) -> None:
        super()._report(dealer, full=full)
        if self._unheard:
            self._tell(dealer, full=False)

    def _tell(self, dealer: Dealer, *, full: bool) -> None:
        reports = dict(self.holds) if full else {name: self.holds[name] for name in self._unheard}
        dealer.send(codec.encode(m.BindingNews(reports=reports, full=full)))

    def _prepare(self, order: m.BindingPrepare) -> None:
        name = order.binding.id
        if name in self.holds or name in self._tombstones:
            return
        self.prepared[name] = self.prepared.get(name, 0) + 1
        instances = order.binding.instances
        if not self.works:
            self._move(name, BindingState.PREPARING, instances)
        elif order.claim.id in self.broken:
            self._move(name, BindingState.FAILED, instances, reason=f"cannot mount for {order.claim.id}")
        else:
            self._move(name, BindingState.READY, instances, evidence="e")

    def _release(self, name: str) -> None:
        self._move(name, BindingState.RELEASED if self.works else BindingState.RELEASING, [])

    def _move(
        self, name: str, state: BindingState, instances: list[Chosen], *, reason: str = "", evidence: str = ""
    ) -> None:
        self.holds[name] = m.BindingReport(state=state, instances=instances, reason=reason, evidence=evidence)
        self._unheard.add(name)
        if state in ENDED:
            self._tombstones.add(name)

    def _heard(self, standing: dict[str, str]) -> None:
        self.standing.update(standing)
        for name, state in standing.items():
            ended = state in {one.value for one in ENDED} or state == "unknown"
            mine = self.holds.get(name)
            if ended and mine is not None and mine.state in ENDED:
                del self.holds[name]
            if not ended or mine is None or mine.state in ENDED:
                self._unheard.discard(name)
