"""A recorded library's answers become facts: what it did not say stays unknown, and nothing is made up."""

import json

import pytest

from xce.agent.probe.facts import Fabric
from xce.agent.probe.recorded import nvidia

UUID = "GPU-5f1c0000-1111-2222-3333-444455556666"


def recording(**device: object) -> bytes:
    return json.dumps({"system": {}, "devices": [{"index": 3, "uuid": UUID, **device}]}).encode()


def test_a_gpu_of_which_little_was_said_is_unknown_in_all_else() -> None:
    (gpu,) = nvidia(recording()).gpus
    assert (gpu.index, gpu.uuid) == (3, UUID)
    assert (gpu.pci, gpu.minor, gpu.memory, gpu.ecc, gpu.persistence) == (None,) * 5
    assert gpu.mig.current is None
    assert gpu.fabric is None


def test_words_become_numbers_and_switches() -> None:
    (gpu,) = nvidia(
        recording(
            sysfs="0008:06:00.0",
            board_id="0x2900",
            module_id="6",
            pcie_width_max="16x",
            memory_mib={"total": 81559},
            ecc_current="Enabled",
            mig_current="Disabled",
            addressing_mode="ATS",
            remapped_rows={"corr": "2", "unc": "0", "pending": "No", "failure": "Yes"},
        )
    ).gpus
    assert (gpu.pci, gpu.board_id, gpu.module, gpu.pcie_width_max) == ("0008:06:00.0", 0x2900, 6, 16)
    assert gpu.memory == 81559 << 20
    assert (gpu.ecc, gpu.mig.current, gpu.addressing) == (True, False, "ats")
    assert (gpu.remapped_correctable, gpu.remap_pending, gpu.remap_failed) == (2, False, True)


def test_a_fabric_that_is_not_supported_is_none_and_a_large_clique_is_a_number() -> None:
    nothing = {"state": None, "clique_id": None, "cluster_uuid": None}
    assert nvidia(recording(fabric=nothing)).gpus[0].fabric is None
    said = {"state": "Completed", "status": "Success", "clique_id": 32766, "cluster_uuid": "0001-2"}
    assert nvidia(recording(fabric=said)).gpus[0].fabric == Fabric(
        state=3, status=0, cluster="0001-2", clique=32766
    )


def test_slices_keep_their_own_memory_and_place() -> None:
    one = {"uuid": "MIG-1", "gi": 1, "ci": 0, "profile": "3g.20gb", "placement": [4, 4], "memory_mib": 20224}
    mig = nvidia(recording(mig_current="Enabled", mig_devices=[{**one, "ce": 3}])).gpus[0].mig
    assert mig.current is True
    (slice_,) = mig.slices
    assert (slice_.placement, slice_.memory, slice_.engines) == ((4, 4), 20224 << 20, {"ce": 3})


@pytest.mark.parametrize("text", [b"", b"[]", b'{"devices": [{"index": 0}]}', recording(sysfs="82:00")])
def test_what_is_no_recording_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        nvidia(text)
