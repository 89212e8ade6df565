"""The shape of every configuration file. `document.py` reads them; `docs/configuration.md` explains them.

All times are seconds, all sizes say their unit in the name. Defaults are what a site should want. A file that
does not fit is refused whole, with file, line, key and what would be right, and what was good stays in force.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

from xce.model.profile import Claims
from xce.model.resource import ResourceType, Seconds
from xce.model.supply import PoolAmount

Positive = Annotated[int, msgspec.Meta(ge=1)]
Cap = Annotated[int, msgspec.Meta(ge=1, le=1 << 22)]


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all configuration structs."""


class Mode(StrEnum):
    """How a reporter talks."""

    ONE_SHOT = "one-shot"
    """Started each interval; prints, and ends."""
    PERSISTENT = "persistent"
    """Started once; prints a frame whenever it likes."""
    ELIM = "elim"
    """Started once; prints LSF's `N name value ...`."""


class Limits(_File, frozen=True, kw_only=True):
    """Caps on one reporter."""

    processes: Cap = 64
    """Processes and threads at one time: a pids.max of its control group, else a limit on its user."""
    open_files: Cap = 256
    """Of each process."""
    memory_mb: Cap = 512
    """Of all its processes together where there is a memory controller, else of each."""
    file_size_mb: Cap = 64
    """Of each file that it writes."""
    cpu_s: Cap = 3600
    """Of one process of a run; the deadline is the real bound."""


class ReporterSettings(_File, frozen=True, kw_only=True):
    """`NAME.yaml` beside a reporter. All keys are optional."""

    mode: Mode = Mode.ONE_SHOT
    """How it is run."""
    interval: Seconds | None = None
    """Between two runs; not given: the agent's `reporters.interval`. A type's own interval wins."""
    timeout: Seconds | None = None
    """One-shot: for the whole run. Persistent, elim: for the silence between frames beyond `interval`. Not
    given: the agent's `reporters.timeout`."""
    grace: Seconds = 2
    """Between TERM and KILL."""
    user: str = ""
    """'' means the agent's `reporters.user`; `root` must be allowed in agent.yaml."""
    weight: Positive = 1
    """Share of the node's budget while it runs."""
    arguments: list[str] = []
    """Passed to it, one word each; no shell looks at them."""
    environment: dict[str, str] = {}
    """Added to the fixed environment; names that begin with XCE_ are refused."""
    limits: Limits = Limits()
    """Caps on it."""
    reports: list[str] = []
    """Names it will report: never-seen until then; passed to it in XCE_EXPECT."""
    types: list[ResourceType] = []
    """Types that it brings along. The cluster's own definition of a name wins."""


class AgentReporters(_File, frozen=True, kw_only=True):
    """`reporters:` of agent.yaml."""

    directory: str = "/etc/xce/reporters.d"
    """Where reporters lie."""
    user: str = "xce-reporter"
    """For reporters that name none; a local user."""
    allow_root: list[str] = []
    """Names of reporters that may ask for `user: root`."""
    interval: Seconds = 30
    """Between two runs of a reporter that does not say."""
    timeout: Seconds = 10
    """For a reporter that does not say."""
    budget: Positive = 8
    """Sum of the weights of runs at one time."""
    max_abandoned: Positive = 4
    """Children that cannot be killed; with so many of them no reporter is started any more."""
    failures_to_quarantine: Positive = 10
    """Hangs, crashes and the like in a row; after them a reporter waits for `reporter reset`."""
    load_indices: bool = True
    """The 11 built-in load indices and the host's attributes."""


class Tolerance(StrEnum):
    """How what is found of a kind is held against what is expected of it."""

    STRICT = "strict"
    """Exactly that, or the host is held."""
    ALLOW_EXTRA = "allow-extra"
    """More may be there; fewer hold the host."""
    ALLOW_MISSING = "allow-missing"
    """Fewer may be there, and what is removed is forgotten; more hold the host."""
    IGNORE = "ignore"
    """Nothing is expected, and what is removed is forgotten."""


class Expected(_File, frozen=True, kw_only=True):
    """What the host should have of one kind of instance."""

    kind: str
    """`gpu`, `accelerator`, `mig`, `nic`, ..."""
    count: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """How many; not given: as many as `ids` names."""
    ids: list[str] = []
    """UUIDs or PCI addresses (`0000:82:00.0`) of those that must be among them."""
    mode: Tolerance = Tolerance.STRICT
    """What may differ."""


class PortRange(_File, frozen=True, kw_only=True):
    """TCP and UDP ports of the host for jobs; which of them claims may have, their profile's `ports` say."""

    name: str
    """Of the range."""
    first: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    """Lowest port of it."""
    last: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    """Highest port of it."""


class Probation(_File, frozen=True, kw_only=True):
    """How an instance that was ill comes back."""

    probation: list[Annotated[float, msgspec.Meta(ge=0)]] = msgspec.field(
        default_factory=lambda: [0.0, 600.0, 3600.0, 21600.0]
    )
    """Seconds without a fault, by how often it fell: the first time at once; the last number holds for all
    others."""
    event_probation: Annotated[float, msgspec.Meta(ge=0)] = 600
    """The least after an XID."""
    settle: Annotated[float, msgspec.Meta(ge=0)] = 60
    """For so long after an XID the driver's word that nothing is needed is not believed."""
    memory: Seconds = 86400
    """After so long without a fault its falls are forgotten."""
    falls: Positive = 5
    """One more within `memory`, and only an admin brings it back."""


class Discovery(_File, frozen=True, kw_only=True):
    """`discovery:` of agent.yaml. How it runs: docs/discovery.md."""

    enabled: bool = True
    """Whether devices are looked for; ports are told all the same."""
    interval: Seconds = 30
    """Between two readings on a node with accelerators; longer where they take long."""
    rest: Seconds = 3600
    """Between two readings on a node without accelerators, where no event asks for one."""
    settle: Seconds = 1
    """After a link or device event, before it is read: several become one."""
    calm: Seconds = 10
    """Shortest time between two readings that events ask for."""
    timeout: Seconds = 60
    """Silence of the probe beyond its interval; then it counts as hanging."""
    unknown_after: Seconds = 180
    """What could not be read for so long is shown as unknown."""
    grace: Seconds = 30
    """For the probe to end in peace; after it TERM, and after it once more KILL."""
    recycle_age: Seconds = 86400
    """The probe is started anew when it is older."""
    recycle_memory_mb: Positive = 256
    """The probe is started anew when it is larger; at twice that the kernel ends it."""
    library: str = ""
    """Path of `libnvidia-ml.so.1`; '' means where the dynamic linker looks."""
    environment: dict[str, str] = {}
    """Added to the environment of the probe, as for the library's debugging."""
    root: str = "/"
    """Where `sys` and `proc` are."""
    machine: str = ""
    """File or directory that describes a machine and stands in for this one; see docs/discovery.md."""
    topology: str = ""
    """File with what a guest cannot see of its topology; the kernel's word wins."""
    rails: list[list[str]] = []
    """PCI addresses of the GPUs and NICs of each rail, where the rule of docs/discovery.md is not what was
    cabled; it goes before that of the topology file."""
    xids_out: list[int] = []
    """XIDs that take a GPU out, against docs/xids.md."""
    xids_noted: list[int] = []
    """XIDs that are only noted, against docs/xids.md."""
    health: Probation = Probation()
    """How an instance that was ill comes back."""
    expected: list[Expected] = []
    """What the host should have; a mismatch holds it until it fits again."""
    ports: list[PortRange] = []
    """Port ranges for jobs, to be told; claims get theirs by `ports` of their profile."""


class AgentFile(_File, frozen=True, kw_only=True):
    """`/etc/xce/agent.yaml`."""

    broker: str = ""
    """`tcp://HOST:PORT`, or `ipc://PATH` on the broker's own host."""
    broker_key: str = "/etc/xce/keys/broker.pub"
    """The broker's public key."""
    key: str = "/etc/xce/keys/agent.key"
    """The agent's own key pair; readable by its user alone."""
    name: str = ""
    """'' means the host name."""
    state_directory: str = "/var/lib/xce-agent"
    """Known types, generations of inventories, the reporters' own directories. On a local file system; one
    agent's alone. Fixed while it runs."""
    run_directory: str = "/run/xce-agent"
    """Lock and control socket. Fixed while it runs."""
    cgroup: str = ""
    """Where reporters' cgroups are made; '' means below the agent's own. Belongs to one agent."""
    reporters: AgentReporters = AgentReporters()
    """What all reporters of the node have in common."""
    discovery: Discovery = Discovery()
    """Finding devices, and what is said of them."""
    claims: Claims = Claims()
    """What claims may use here, and how."""
    metrics: str = ""
    """`ADDRESS:PORT` of the node's own OpenMetrics endpoint; '' means none."""


class Discovered(StrEnum):
    """What happens to a host that joins and is in no file."""

    REFUSE = "refuse"
    """It is sent away."""
    HOLD = "hold"
    """Shown as unknown-host until `xce-broker host admit`."""
    ADMIT = "admit"
    """It is taken up like one of hosts.yaml."""


class NewTypes(StrEnum):
    """What happens to a type that a reporter's NAME.yaml declares and the cluster does not know."""

    REFUSE = "refuse"
    """Its values are not taken."""
    ADMIT = "admit"
    """It becomes the cluster's, durably."""


class Orphans(StrEnum):
    """What happens to a binding that a node has and the broker does not know."""

    REPORT = "report"
    """It is shown, and its instances are quarantined."""
    CLEAN = "clean"
    """Its node is told to release it, too."""


class BrokerFile(_File, frozen=True, kw_only=True):
    """`/etc/xce/broker.yaml`."""

    listen: list[str] = msgspec.field(default_factory=lambda: ["tcp://*:7400"])
    """Addresses with CURVE keys: `tcp://ADDRESS:PORT`."""
    local: str = "/run/xce-broker/broker.sock"
    """Unix socket of ZeroMQ for programs on this host, guarded by its file mode; '' means none."""
    key: str = "/etc/xce/keys/broker.key"
    """The broker's own key pair."""
    accepted_keys: str = "/etc/xce/keys/accepted"
    """Directory of public keys that are taken up at start and on SIGHUP."""
    state_directory: str = "/var/lib/xce-broker"
    """The store of facts and the cache of last values."""
    resources: str = "/etc/xce/resources.yaml"
    """Types and pools."""
    hosts: str = "/etc/xce/hosts.yaml"
    """Hosts, groups, static values."""
    heartbeat: Annotated[float, msgspec.Meta(ge=0.1, le=3600, title="seconds")] = 10
    """Shortest interval assigned to agents."""
    heartbeats_per_second: Positive = 1000
    """Longer intervals are assigned once there are more hosts than this allows."""
    missed_heartbeats: Positive = 3
    """So many intervals of silence, and a host is lost."""
    rejoin: Seconds = 60
    """After a start, nobody is declared lost for this long."""
    discovered: Discovered = Discovered.HOLD
    """What happens to a host that joins and is in no file."""
    new_types: NewTypes = NewTypes.ADMIT
    """What happens to a type that only a reporter declares."""
    orphans: Orphans = Orphans.REPORT
    """What happens to a binding that only a node knows."""
    keep_deltas: Positive = 4096
    """How many turns of the change stream can be resumed."""
    max_peers: Positive = 20000
    """Connections at one time; more are told to come again later."""
    metrics: str = "127.0.0.1:7401"
    """`ADDRESS:PORT` of the OpenMetrics endpoint; '' means none."""
    audit: str = ""
    """File for one line per mutating call; '' means the journal."""


class HostEntry(_File, frozen=True, kw_only=True):
    """One entry of `hosts:` in hosts.yaml."""

    name: str
    """`node17`, or a range: `node[001-100]`."""
    groups: list[str] = []
    """Names of groups that are declared below `groups:`."""
    values: dict[str, bool | int | float | str | list[str]] = {}
    """Static values by resource name; they win over reporters and over the groups' `host_values`."""


class GroupEntry(_File, frozen=True, kw_only=True):
    """One entry of `groups:` in hosts.yaml."""

    name: str
    """Of the group."""
    hosts: list[str] = []
    """Names or ranges."""
    values: dict[str, bool | int | float | str | list[str]] = {}
    """Of the group itself (scope host-group)."""
    host_values: dict[str, bool | int | float | str | list[str]] = {}
    """Of each host in it; the host's own entry wins."""


class HostsFile(_File, frozen=True, kw_only=True):
    """`/etc/xce/hosts.yaml`."""

    hosts: list[HostEntry] = []
    """The hosts that should exist."""
    groups: list[GroupEntry] = []
    """Host groups, which are locations of their own."""


class PoolEntry(_File, frozen=True, kw_only=True):
    """One entry of `pools:` in resources.yaml."""

    name: str
    """Of the pool."""
    resources: dict[str, PoolAmount] = {}
    """How much of each resource of scope pool or external is in it."""


class ResourcesFile(_File, frozen=True, kw_only=True):
    """`/etc/xce/resources.yaml`."""

    types: list[ResourceType] = []
    """Resource types beside the built-in ones."""
    pools: list[PoolEntry] = []
    """Pools."""


class ExternalFile(_File, frozen=True, kw_only=True):
    """`/etc/xce/reporter.yaml`, for `xce-reporter run`."""

    broker: str = ""
    """As in agent.yaml."""
    broker_key: str = "/etc/xce/keys/broker.pub"
    """The broker's public key."""
    key: str = "/etc/xce/keys/reporter.key"
    """A key pair of the role `reporter`."""
    name: str = ""
    """Identity that resource types name as their reporter; '' means the key's name."""
    state_directory: str = "/var/lib/xce-reporter"
    """As in agent.yaml."""
    run_directory: str = "/run/xce-reporter"
    """As in agent.yaml."""
    cgroup: str = ""
    """As in agent.yaml."""
    reporters: AgentReporters = AgentReporters(load_indices=False)
    """As in agent.yaml, without the built-in source."""
