"""Checks between resources.yaml and hosts.yaml, and what the two describe together."""

from xce.model.builtin_types import BUILTIN_TYPES, LOAD_INDICES
from xce.model.configuration import HostsFile, ResourcesFile
from xce.model.document import load_placed
from xce.model.site import check_site, site_of, types_of

RESOURCES = """
types:
  - {name: rack, kind: string}
  - {name: scratch_gb, kind: numeric, minimum: 0}
  - {name: sets, kind: string-set}
  - {name: matlab, kind: numeric, scope: pool}
  - {name: power_kw, kind: numeric, scope: host-group}
pools:
  - name: licences
    resources: {matlab: {base: 10}}
"""
HOSTS = """
hosts:
  - name: node[1-3]
    groups: [gpu]
    values: {rack: a, sets: [y, x, y]}
  - {name: login}
groups:
  - {name: gpu, values: {power_kw: 12}, host_values: {rack: b, scratch_gb: 100}}
  - {name: front, hosts: [login, cloud1], host_values: {scratch_gb: 1}}
"""


def problems(resources: str, hosts: str) -> list[str]:
    first = load_placed(resources, "resources.yaml", ResourcesFile)
    second = load_placed(hosts, "hosts.yaml", HostsFile)
    return [str(error) for error in check_site(first, second)]


def test_files_that_agree_pass_and_describe_the_site() -> None:
    assert problems(RESOURCES, HOSTS) == []
    site = site_of(load_placed(RESOURCES, "r", ResourcesFile).value, load_placed(HOSTS, "h", HostsFile).value)
    assert site.groups_of["node2"] == ["gpu"]
    assert site.groups_of["login"] == ["front"]
    assert list(site.groups_of) == ["node1", "node2", "node3", "login"]
    assert site.values["host:node2"] == {"rack": "a", "scratch_gb": 100, "sets": ["x", "y"]}
    assert site.values["group:gpu"] == {"power_kw": 12}
    assert site.values["host:login"] == {"scratch_gb": 1}
    assert site.members["front"] == ["login", "cloud1"]
    assert site.pools["licences"]["matlab"].base == 10


def test_each_disagreement_is_named_with_its_line() -> None:
    resources = """types:
  - {name: a, kind: numeric}
  - {name: a, kind: string}
  - {name: mem, kind: numeric, unit: GB}
pools:
  - {name: p, resources: {a: {base: 1}, b: {base: 1}}}
  - {name: p}
  - {name: 'p q'}
"""
    hosts = """hosts:
  - name: node[1-3]
    values:
      a: text
      aa: 1
  - {name: node2, groups: [gpus]}
  - {name: 'node[3'}
groups:
  - {name: gpu, host_values: {a: 1}, hosts: ['node[1-2]', 'x y']}
  - {name: gpu}
  - {name: g2, hosts: [node7], host_values: {a: 1}}
  - {name: g3, hosts: [node7], host_values: {a: 2}}
"""
    assert problems(resources, hosts) == [
        "resources.yaml:3: types[a].name: is declared twice, first in line 2; remove one",
        "resources.yaml:4: types[mem].name: is built in as numeric in MB of a host; "
        "keep kind, unit and scope, or take another name",
        "resources.yaml:6: pools[p].resources.a: has scope host; here stand values of scope pool or external",
        "resources.yaml:6: pools[p].resources.b: no such resource type; declare it in resources.yaml",
        "resources.yaml:7: pools[p].name: is declared twice, first in line 6; remove one",
        "resources.yaml:8: pools[p q].name: letters, digits, '.', '_' and '-' only, "
        "starting with a letter, digit or '_'",
        "hosts.yaml:4: hosts[node[1-3]].values.a: expected a number, got a string",
        "hosts.yaml:5: hosts[node[1-3]].values.aa: no such resource type; declare it in resources.yaml",
        "hosts.yaml:6: hosts[node2].name: node2 is declared twice, first in line 2",
        "hosts.yaml:6: hosts[node2].groups[0]: no group 'gpus'; did you mean 'gpu'?",
        "hosts.yaml:7: hosts[node[3].name: brackets do not match",
        "hosts.yaml:9: groups[gpu].hosts[1]: x y: letters, digits, '.', '_' and '-' only, "
        "starting with a letter, digit or '_'",
        "hosts.yaml:10: groups[gpu].name: is declared twice, first in line 9; remove one",
        "hosts.yaml:12: groups[g3].host_values.a: node7 is also in group g2, which says 1; "
        "give the value in the host's own entry",
    ]


def test_a_site_may_change_the_time_to_live_of_a_built_in_type() -> None:
    text = "types:\n- {name: tmp, kind: numeric, unit: MB, ttl: 900}\n"
    assert problems(text, "") == []
    assert types_of(load_placed(text, "r", ResourcesFile).value)["tmp"].ttl == 900


def test_values_that_would_be_stale_before_the_next_ones_are_refused_with_line_and_key() -> None:
    text = """types:
- {name: a, kind: numeric, interval: 60, ttl: 60}
- {name: b, kind: numeric, ttl: 1}
- {name: c, kind: numeric, interval: 60}
- name: d
  kind: numeric
  ttl: 59
  interval: 60
- {name: tmp, kind: numeric, unit: MB, ttl: 119}
"""
    words = "is less than the interval: a value would be stale before the next one; give"
    assert problems(text, "") == [
        f"resources.yaml:7: types[d].ttl: {words} 60 or more",
        f"resources.yaml:9: types[tmp].ttl: {words} 120 or more",
    ]


def test_the_load_indices_are_lsfs_eleven_in_its_order() -> None:
    assert [kind.name for kind in LOAD_INDICES] == [
        *("r15s", "r1m", "r15m", "ut", "pg", "io"),
        *("ls", "it", "swp", "mem", "tmp"),
    ]
    assert {kind.name: kind.interval for kind in LOAD_INDICES if kind.interval != 15} == {
        "ls": 30,
        "it": 30,
        "tmp": 120,
    }
    assert {name for name, kind in BUILTIN_TYPES.items() if kind.order == "decreasing"} == {
        "it",
        "swp",
        "mem",
        "tmp",
    }
