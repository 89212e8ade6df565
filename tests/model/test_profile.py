"""`claims:` of agent.yaml: what is refused beyond the shape."""

import pytest

from xce.model.profile import (
    ClaimPorts,
    Claims,
    Csi,
    CsiVolume,
    Profile,
    ScratchRoot,
    SharedVolume,
    Volume,
    problems,
    profile_of,
)


def of(**fields: object) -> Claims:
    return Claims(profiles={"p": Profile(**fields)})  # type: ignore[arg-type]


DEVICE = "is a device: type, options and group are of file systems"


def with_csi(**fields: object) -> Claims:
    volume = Volume(csi=CsiVolume(**{"plugin": "p", "id": "v1", **fields}))  # type: ignore[arg-type]
    return Claims(csi=Csi(plugins={"p": "/p.sock"}), profiles={"p": Profile(volumes={"v": volume})})


def test_the_defaults_are_good() -> None:
    assert problems(Claims(profiles={"default": Profile()})) == {}
    assert problems(with_csi()) == {}


@pytest.mark.parametrize(
    ("claims", "key", "words"),
    [
        (Claims(directory="run"), "directory", "must be an absolute path"),
        (Claims(cdi_directory="cdi"), "cdi_directory", "must be an absolute path"),
        (Claims(cgroup="jobs"), "cgroup", "must be an absolute path"),
        (of(devices=["c 1:3"]), "profiles.p.devices", "'c 1:3' is no device rule such as 'c 1:3 rwm'"),
        (of(device_extras=["/etc/x"]), "profiles.p.device_extras", "'/etc/x' is not below /dev"),
        (of(volumes={"v": Volume()}), "profiles.p.volumes.v", "needs a path or a type, and not both"),
        (
            with_csi(plugin="q"),
            "profiles.p.volumes.v.csi.plugin",
            "'q' is none of csi.plugins, and there is no csi.registration folder",
        ),
        (with_csi(id="v" * 129), "profiles.p.volumes.v.csi.id", "must have at most 128 bytes"),
        (with_csi(id="v\0"), "profiles.p.volumes.v.csi.id", "must be printable"),
        (with_csi(block=True, group="7"), "profiles.p.volumes.v.csi.block", DEVICE),
        (with_csi(secrets="key"), "profiles.p.volumes.v.csi.secrets", "must be an absolute path"),
        (
            with_csi(context={"a": "b" * 4096}),
            "profiles.p.volumes.v.csi.context",
            "has more than the 4096 bytes that plugins take",
        ),
        (Claims(csi=Csi(plugins={"p": "x.sock"})), "csi.plugins.p", "must be an absolute path"),
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
