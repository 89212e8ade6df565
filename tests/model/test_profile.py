"""`claims:` of agent.yaml: what is refused beyond the shape."""

import pytest

from xce.model.profile import (
    ClaimPorts,
    Claims,
    Profile,
    ScratchRoot,
    SharedVolume,
    Volume,
    problems,
    profile_of,
)


def of(**fields: object) -> Claims:
    return Claims(profiles={"p": Profile(**fields)})  # type: ignore[arg-type]


def test_the_defaults_are_good() -> None:
    assert problems(Claims(profiles={"default": Profile()})) == {}


@pytest.mark.parametrize(
    ("claims", "key", "words"),
    [
        (Claims(directory="run"), "directory", "must be an absolute path"),
        (Claims(cdi_directory="cdi"), "cdi_directory", "must be an absolute path"),
        (Claims(cgroup="jobs"), "cgroup", "must be an absolute path"),
        (of(devices=["c 1:3"]), "profiles.p.devices", "'c 1:3' is no device rule such as 'c 1:3 rwm'"),
        (of(volumes={"v": Volume()}), "profiles.p.volumes.v", "needs a path or a type, and not both"),
        (of(volumes={"v": Volume(path="a")}), "profiles.p.volumes.v.path", "must be an absolute path"),
        (of(shared={"s": SharedVolume(path="a")}), "profiles.p.shared.s.path", "must be an absolute path"),
        (of(scratch={"s": ScratchRoot(path="a")}), "profiles.p.scratch.s.path", "must be an absolute path"),
        (of(ports=ClaimPorts(low=2, high=1)), "profiles.p.ports", "the lower port must come first"),
    ],
)
def test_what_makes_no_sense_is_told_with_its_key(claims: Claims, key: str, words: str) -> None:
    assert problems(claims) == {key: words}


def test_a_profile_that_is_not_there_is_none_but_for_the_default() -> None:
    assert profile_of(Claims(), "") == Profile()
    assert profile_of(Claims(), "gold") is None
    gold = Profile(grace_s=1)
    assert profile_of(Claims(profiles={"gold": gold}), "gold") is gold
