"""The shape of every configuration file. `document.py` reads them; `docs/configuration.md` explains them.

All times are seconds, all sizes say their unit in the name. Defaults are what a site should want. A file that
does not fit is refused whole, with file, line, key and what would be right, and what was good stays in force.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

from xce.model.resource import ResourceType, Seconds
from xce.model.supply import PoolAmount

Positive = Annotated[int, msgspec.Meta(ge=1)]


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all configuration structs."""


class Mode(StrEnum):
    """How a reporter talks."""

    ONE_SHOT = "one-shot"
    PERSISTENT = "persistent"
    ELIM = "elim"


class Limits(_File, frozen=True, kw_only=True):
    """Caps on one reporter."""

    processes: Positive = 64
    open_files: Positive = 256
    memory_mb: Positive = 512
    file_size_mb: Positive = 64
    cpu_s: Positive = 3600
    """Of one process of a run; the deadline is the real bound."""


class ReporterSettings(_File, frozen=True, kw_only=True):
    """`NAME.yaml` beside a reporter. All keys are optional."""

    mode: Mode = Mode.ONE_SHOT
    interval: Seconds | None = None
    timeout: Seconds | None = None
    """One-shot: for the whole run. Persistent, elim: for the silence between frames beyond `interval`."""
    grace: Seconds = 2
    """Between TERM and KILL."""
    user: str = ""
    """'' means the agent's `reporters.user`; `root` must be allowed in agent.yaml."""
    weight: Positive = 1
    """Share of the node's budget while it runs."""
    arguments: list[str] = []
    environment: dict[str, str] = {}
    limits: Limits = Limits()
    reports: list[str] = []
    """Names it will report: never-seen until then; passed to it in XCE_EXPECT."""
    types: list[ResourceType] = []


class AgentReporters(_File, frozen=True, kw_only=True):
    """`reporters:` of agent.yaml."""

    directory: str = "/etc/xce/reporters.d"
    user: str = "xce-reporter"
    allow_root: list[str] = []
    """Names of reporters that may ask for `user: root`."""
    interval: Seconds = 30
    timeout: Seconds = 10
    budget: Positive = 8
    """Sum of the weights of runs at one time."""
    max_abandoned: Positive = 4
    failures_to_quarantine: Positive = 10
    load_indices: bool = True
    """The 11 built-in load indices and the host's attributes."""


class AgentFile(_File, frozen=True, kw_only=True):
    """`/etc/xce/agent.yaml`."""

    broker: str = ""
    """`tcp://HOST:PORT`, or `ipc://PATH` on the broker's own host."""
    broker_key: str = "/etc/xce/keys/broker.pub"
    key: str = "/etc/xce/keys/agent.key"
    name: str = ""
    """'' means the host name."""
    state_directory: str = "/var/lib/xce-agent"
    run_directory: str = "/run/xce-agent"
    cgroup: str = ""
    """Where reporters' cgroups are made; '' means below the agent's own."""
    reporters: AgentReporters = AgentReporters()
    metrics: str = ""
    """`ADDRESS:PORT` of the node's own OpenMetrics endpoint; '' means none."""


class Discovered(StrEnum):
    """What happens to a host that joins and is in no file."""

    REFUSE = "refuse"
    HOLD = "hold"
    """Shown as unknown-host until `xce-broker host admit`."""
    ADMIT = "admit"


class NewTypes(StrEnum):
    """What happens to a type that a reporter's NAME.yaml declares and the cluster does not know."""

    REFUSE = "refuse"
    ADMIT = "admit"


class BrokerFile(_File, frozen=True, kw_only=True):
    """`/etc/xce/broker.yaml`."""

    listen: list[str] = msgspec.field(default_factory=lambda: ["tcp://*:7400"])
    local: str = "/run/xce-broker/broker.sock"
    """Unix socket of ZeroMQ for programs on this host, guarded by its file mode; '' means none."""
    key: str = "/etc/xce/keys/broker.key"
    accepted_keys: str = "/etc/xce/keys/accepted"
    """Directory of public keys that are taken up at start and on SIGHUP."""
    state_directory: str = "/var/lib/xce-broker"
    resources: str = "/etc/xce/resources.yaml"
    hosts: str = "/etc/xce/hosts.yaml"
    heartbeat: Seconds = 10
    """Shortest interval assigned to agents."""
    heartbeats_per_second: Positive = 1000
    """Longer intervals are assigned once there are more hosts than this allows."""
    missed_heartbeats: Positive = 3
    rejoin: Seconds = 60
    """After a start, nobody is declared lost for this long."""
    discovered: Discovered = Discovered.HOLD
    new_types: NewTypes = NewTypes.ADMIT
    keep_deltas: Positive = 4096
    """How many turns of the change stream can be resumed."""
    max_peers: Positive = 20000
    metrics: str = "127.0.0.1:7401"
    audit: str = ""
    """File for one line per mutating call; '' means the journal."""


class HostEntry(_File, frozen=True, kw_only=True):
    """One entry of `hosts:` in hosts.yaml."""

    name: str
    """`node17`, or a range: `node[001-100]`."""
    groups: list[str] = []
    values: dict[str, bool | int | float | str | list[str]] = {}


class GroupEntry(_File, frozen=True, kw_only=True):
    """One entry of `groups:` in hosts.yaml."""

    name: str
    hosts: list[str] = []
    """Names or ranges."""
    values: dict[str, bool | int | float | str | list[str]] = {}
    """Of the group itself (scope host-group)."""
    host_values: dict[str, bool | int | float | str | list[str]] = {}
    """Of each host in it; the host's own entry wins."""


class HostsFile(_File, frozen=True, kw_only=True):
    """`/etc/xce/hosts.yaml`."""

    hosts: list[HostEntry] = []
    groups: list[GroupEntry] = []


class PoolEntry(_File, frozen=True, kw_only=True):
    """One entry of `pools:` in resources.yaml."""

    name: str
    resources: dict[str, PoolAmount] = {}


class ResourcesFile(_File, frozen=True, kw_only=True):
    """`/etc/xce/resources.yaml`."""

    types: list[ResourceType] = []
    pools: list[PoolEntry] = []


class ExternalFile(_File, frozen=True, kw_only=True):
    """`/etc/xce/reporter.yaml`, for `xce-reporter run`."""

    broker: str = ""
    broker_key: str = "/etc/xce/keys/broker.pub"
    key: str = "/etc/xce/keys/reporter.key"
    name: str = ""
    """Identity that resource types name as their reporter; '' means the key's name."""
    state_directory: str = "/var/lib/xce-reporter"
    run_directory: str = "/run/xce-reporter"
    cgroup: str = ""
    reporters: AgentReporters = AgentReporters(load_indices=False)
