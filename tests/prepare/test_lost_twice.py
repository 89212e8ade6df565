"""Neither the node nor the cluster knows of a job any more, and it runs: nobody is given what it may use."""

import subprocess
from pathlib import Path

import pytest

from tests.prepare.world import World
from xce.model.claim import Ask, BindingState
from xce.prepare.execute import Refused

pytestmark = pytest.mark.root
READY = BindingState.READY


def test_while_processes_of_nobody_are_in_a_group_of_ours_no_instance_is_given_away(world: World) -> None:
    """It has the device closed for the moment, so nothing shows that it uses it; its filter lets it."""
    assert world.bind(Ask(), cards=["full"], binding="b1").state is READY
    with subprocess.Popen(world.inside("b1", ["sleep", "60"])) as job:
        world.until(lambda: world.group.child("xce-consumer-job-b1").populated())
        world.stop()
        for file in Path(world.place, "state").iterdir():
            file.unlink()
        world.start()
        world.take_up()
        with pytest.raises(Refused, match=r"xce-consumer-job-b1.* has processes.*end them"):
            world.bind(Ask(), cards=["full"], binding="b2")
        assert world.bind(Ask(), binding="b3").state is READY, "it needs no instance"
        job.kill()
        job.wait()
        world.until(lambda: not world.group.child("xce-consumer-job-b1").populated())
    assert world.bind(Ask(), cards=["full"], binding="b2").state is READY
    world.executor.release(op_id="end", epoch=1, binding="b2")
    world.over("b2")
    world.release("b3")
    assert world.group.child("xce-consumer-job-b1").remove()
