"""Who may say what: one row for each message. What is not in a role's rows is refused and counted."""

from xce.model import message as m
from xce.model.role import Role

_LINKED = frozenset({Role.AGENT, Role.REPORTER})
_READERS = frozenset({Role.CONTROLLER, Role.ADMIN, Role.PROVIDER})
_PLANNERS = frozenset({Role.CONTROLLER, Role.ADMIN, Role.PROVIDER})
_PROVIDERS = frozenset({Role.ADMIN, Role.PROVIDER})
_CLAIMANTS = frozenset({Role.CONTROLLER, Role.ADMIN})
_AGENT = frozenset({Role.AGENT})
_ADMIN = frozenset({Role.ADMIN})
_KEYED = frozenset(Role) - {Role.JOINER}

ROLES: dict[type, frozenset[Role]] = {
    m.Hello: _KEYED,
    # the links of agents and external reporters
    m.Report: _LINKED,
    m.Heartbeat: _LINKED,
    m.ReporterNews: _LINKED,
    m.InventoryNews: _LINKED,
    m.InventoryGone: _LINKED,
    m.Declare: _LINKED,
    m.Goodbye: _LINKED,
    m.BindingNews: _AGENT,
    m.MineRequest: _LINKED,
    # questions
    m.SnapshotRequest: _READERS,
    m.InventoriesRequest: _READERS,
    m.WatchRequest: _READERS,
    m.Credit: _READERS,
    m.Unwatch: _READERS,
    m.StatusRequest: _READERS,
    m.ClaimsRequest: _READERS,
    m.KeysRequest: _ADMIN,
    m.BackupRequest: _ADMIN,
    # orders
    m.HostAdd: _PROVIDERS,
    m.HostAdmit: _ADMIN,
    m.HostDrain: _PLANNERS,
    m.HostUndrain: _PLANNERS,
    m.HostRelease: _PROVIDERS,
    m.HoldAdd: _PLANNERS,
    m.HoldRelease: _PLANNERS,
    m.PoolSet: _PROVIDERS,
    m.KeyAdd: _ADMIN,
    m.KeyRevoke: _ADMIN,
    m.KeyRotate: _KEYED,
    m.KeyRetire: _KEYED,
    m.Join: frozenset({Role.JOINER}),
    m.ClaimCreate: _CLAIMANTS,
    m.ClaimProvide: _PROVIDERS,
    m.ClaimBind: _CLAIMANTS,
    m.ClaimRelease: _CLAIMANTS,
    m.ClaimDelete: _CLAIMANTS,
    m.BindingForce: _ADMIN,
    m.QuarantineSet: _ADMIN,
    m.QuarantineClear: _ADMIN,
}
"""Whose hold, drain or host it is decides further: `orders.py`."""

ALLOWED: dict[Role, frozenset[type]] = {
    role: frozenset(kind for kind, roles in ROLES.items() if role in roles) for role in Role
}

UNTIL_HELLO = frozenset({m.Hello, m.KeyRotate, m.KeyRetire})
"""What a peer may say whose role speaks only after an accepted hello."""

NEEDS_HELLO = _LINKED
PLANNERS = _PLANNERS
READERS = _READERS
