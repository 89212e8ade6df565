"""What may be ordered of the broker. Each has an op_id: said again, it is done once."""

import msgspec

from xce.model.claim import BindingState, Claim, Consumer
from xce.model.message.base import Request
from xce.model.value import Count


class HostAdd(Request, frozen=True, kw_only=True, tag="host.add"):
    """A host should exist (source `provisioner`, or `config` by an admin's hand)."""

    host: str
    groups: list[str] = []
    instance: str = ""
    template: str = ""
    join_within_s: float = 0


class HostAdmit(Request, frozen=True, kw_only=True, tag="host.admit"):
    """Let in a host that nobody expected."""

    host: str


class HostDrain(Request, frozen=True, kw_only=True, tag="host.drain"):
    """Drain a host."""

    host: str
    reason: str


class HostUndrain(Request, frozen=True, kw_only=True, tag="host.undrain"):
    """End the drain."""

    host: str


class HostRelease(Request, frozen=True, kw_only=True, tag="host.release"):
    """The host should no longer exist."""

    host: str
    reason: str


class HoldAdd(Request, frozen=True, kw_only=True, tag="hold.add"):
    """Hold a location. The owner is `ROLE:KEYNAME`, with `/label` if given."""

    location: str
    reason: str
    label: str = ""


class HoldRelease(Request, frozen=True, kw_only=True, tag="hold.release"):
    """Take a hold away."""

    location: str
    owner: str


class PoolSet(Request, frozen=True, kw_only=True, tag="pool.set"):
    """Set a pool's amount of a resource; what is None stays."""

    pool: str
    resource: str
    base: float | None = None
    borrowed: float | None = None


class KeyAdd(Request, frozen=True, kw_only=True, tag="key.add"):
    """Accept a public key."""

    name: str
    role: str
    public: str
    hosts: list[str] = []
    grants: str = ""
    """Of a joiner, whose key is a token: the role of the key that it may have accepted, once."""
    lifetime_s: float = 0
    """Of a joiner: how long from now on."""
    admit: bool = False
    """Of a joiner: admit the host, whatever the policy for hosts that nobody expects."""


class Join(Request, frozen=True, kw_only=True, tag="join"):
    """Said with a token's key: accept this one from now on. The token is used up with it."""

    name: str
    """The host, of an agent."""
    public: str


class KeyRotate(Request, frozen=True, kw_only=True, tag="key.rotate"):
    """Accept one more key for the caller, with the same name, role and hosts."""

    public: str


class KeyRetire(Request, frozen=True, kw_only=True, tag="key.retire"):
    """Accept no other key of the caller's name and role any more than the one that says this."""


class KeyRevoke(Request, frozen=True, kw_only=True, tag="key.revoke"):
    """Accept a public key no longer: its connections are cut off, and the host of an agent lost, at once."""

    name: str
    reason: str


class ClaimCreate(Request, frozen=True, kw_only=True, tag="claim.create"):
    """A claim is wanted. The answer's `made` has its id."""

    claim: Claim


class ClaimProvide(Request, frozen=True, kw_only=True, tag="claim.provide"):
    """A provider says how far it is with a claim of its own."""

    claim: str
    state: BindingState
    reason: str = ""
    volume: dict[str, str] = {}


class Pick(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An instance that was chosen from a snapshot."""

    id: str
    reporter: str
    generation: Count
    """Of the inventory that it was chosen from; with any other the choice is refused."""


class Place(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One binding that is wanted."""

    claim: str
    host: str
    consumer: Consumer
    instances: list[Pick] = []
    read_only: bool = False


class ClaimBind(Request, frozen=True, kw_only=True, tag="claim.bind"):
    """Bind claims to hosts. The answer's `made` has the ids of the bindings, in the same order.

    Several are a gang: all become ready at once, or all are released. Ready is an event in the stream.
    """

    places: list[Place]
    ready_within_s: float = 0
    """Released again if it takes longer; 0: no limit."""


class ClaimRelease(Request, frozen=True, kw_only=True, tag="claim.release"):
    """Release bindings: these, or all of a gang, or all of a claim. A template claim ends with it."""

    claim: str = ""
    gang: str = ""
    bindings: list[str] = []
    reason: str = ""


class ClaimDelete(Request, frozen=True, kw_only=True, tag="claim.delete"):
    """Delete a claim without live bindings."""

    claim: str


class BindingForce(Request, frozen=True, kw_only=True, tag="binding.force"):
    """Give up waiting for a node: the binding counts as released, its instances are quarantined."""

    binding: str
    reason: str


class QuarantineSet(Request, frozen=True, kw_only=True, tag="quarantine.set"):
    """An instance may not be used."""

    host: str
    instance: str
    reason: str


class QuarantineClear(Request, frozen=True, kw_only=True, tag="quarantine.clear"):
    """An instance may be used again."""

    host: str
    instance: str
    reason: str
