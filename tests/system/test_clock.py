"""C-STA-02: wall time is set back by nine hours under the agent, the broker or both.

A library that is loaded before all others shifts CLOCK_REALTIME by what a file says, and leaves
CLOCK_MONOTONIC alone, as setting a real clock does.
"""

import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.harness import Site
from xce.model.value import Absent

pytestmark = [pytest.mark.root, pytest.mark.system]

SHIM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long shift(void) {
    char text[32] = {0};
    const char *path = getenv("CLOCK_SHIFT");
    int fd = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return 0;
    if (read(fd, text, sizeof text - 1) < 0) text[0] = 0;
    close(fd);
    return atol(text);
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int rc = (int)syscall(SYS_clock_gettime, clock, now);
    if (!rc && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
    return rc;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec t;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &t);
    now->tv_sec = t.tv_sec;
    now->tv_usec = t.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *now) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (now) *now = t.tv_sec;
    return t.tv_sec;
}
"""
BACK_S = -9 * 3600


@pytest.fixture
def shifted(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Makes the environment of a program whose clock is set by the file of that name."""
    source, library = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text(SHIM)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True, timeout=60)

    def environment(name: str) -> dict[str, str]:
        (tmp_path / f"{name}.clock").write_text("0")
        return {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(tmp_path / f"{name}.clock")}

    return environment


@pytest.mark.parametrize("whose", [("agent",), ("broker",), ("agent", "broker")], ids="+".join)
def test_a_clock_set_back_by_nine_hours_stops_nothing_and_makes_nothing_old_look_new(
    site: Site, shifted: Callable[[str], dict[str, str]], tmp_path: Path, whose: tuple[str, ...]
) -> None:
    site.broker.environment |= shifted("broker")
    agent = site.agent("node1")
    agent.environment |= shifted("agent")
    types = [{"name": name, "kind": "numeric"} for name in ("fresh", "old")]
    site.broker.resources = {"types": types}
    agent.script("fresh", "#!/bin/sh\necho '{\"fresh\": 1}'\n", interval=1, timeout=1)
    answers = tempfile.NamedTemporaryFile(prefix="xce-test-")  # noqa: SIM115 - where a reporter's user looks
    once = f"#!/bin/sh\n[ -e {answers.name} ] || exit 3\necho '{{\"old\": 1}}'\n"
    agent.script("old", once, interval=2, timeout=2)
    site.broker.start()
    agent.start()
    site.until(lambda: site.value("node1", "fresh") == 1 and site.value("node1", "old") == 1)
    before = site.snapshot()
    runs, resyncs = agent.reporter("fresh")["runs"], agent.status()["link"]["resyncs"]
    answers.close()
    for name in whose:
        (tmp_path / f"{name}.clock").write_text(str(BACK_S))
    site.until(lambda: isinstance(site.value("node1", "old"), Absent))
    end = time.monotonic() + 3
    while time.monotonic() < end:
        place = site.snapshot().locations["host:node1"]
        assert (place.state, place.conditions) == ("available", [])
        assert place.values["fresh"] == 1
        assert isinstance(place.values["old"], Absent)
        time.sleep(0.2)
    after = site.snapshot()
    if "broker" in whose:
        assert after.taken_at < before.taken_at, "the clock was not set back"
    assert agent.reporter("fresh")["runs"] - runs >= 3
    assert agent.reporter("fresh")["age_s"] < 3
    assert agent.status()["link"]["resyncs"] == resyncs
