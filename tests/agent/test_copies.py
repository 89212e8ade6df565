"""A fleet of one machine's copies: each host is whole in itself, and no two share what is unique."""

from tests.agent.picture.test_plan import plan_of
from tests.agent.picture.test_plan import words as matrix_words
from xce.agent.external import copies
from xce.agent.picture.plan import Plan
from xce.model.instance import Instance, Inventory


def of(name: str) -> list[Instance]:
    plan = plan_of(name)
    return [one for device in plan.devices for one in (device.instance, *device.parts)]


def test_no_two_hosts_share_a_gpu_and_each_has_its_own_again_every_time() -> None:
    found = of("h100")
    first, second = copies.of_host(found, "node1"), copies.of_host(found, "node2")
    assert first == copies.of_host(found, "node1")
    unique = {one.id for one in found if one.kind in ("gpu", "mig")}
    assert len(unique) == 11
    for host in (first, second):
        assert not unique & {one.id for one in host}
    shared = {one.id for one in first} & {one.id for one in second}
    assert shared
    assert all(one.startswith("pci:") for one in shared)


def test_a_copy_hangs_together_as_the_machine_does() -> None:
    """Parents, peers, and who is near whom."""
    for name in ("h100", "kfd-mi300x-cpx"):
        host = copies.of_host(of(name), "node1")
        Inventory(reporter="discovery", generation=1, complete=True, instances=host)
        assert matrix_words(Plan(host)) == matrix_words(plan_of(name))


def test_serials_are_nobodys() -> None:
    one = Instance(id="GPU-1", kind="gpu", attributes={"serial": "1650", "product": "H100"})
    assert copies.of_host([one], "node1")[0].attributes == {"product": "H100"}
