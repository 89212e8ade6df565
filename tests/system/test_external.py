"""Reporters off the nodes: values of pools under an identity, and nobody else's."""

import subprocess

import pytest

from tests.system.harness import Site, python
from xce.model.value import Absent, Presence

pytestmark = [pytest.mark.system, pytest.mark.root]

LIC = {"name": "lic_free", "kind": "numeric", "scope": "pool", "reporter": "lic1", "minimum": 0}
SCRIPT = """#!/bin/sh
. "$XCE_STATE_DIR/../../state"
[ "$answer" = down ] && { echo "lmstat: cannot connect to license server" >&2; exit 3; }
echo "{\\"lic_free@pool:matlab\\": $answer}"
"""


def test_a_licence_count_reaches_its_pool_and_a_dead_server_is_unknown_not_zero(site: Site) -> None:
    """C-DIR-02."""
    site.broker.resources = {
        "types": [LIC],
        "pools": [{"name": "matlab", "resources": {"lic_free": {"base": 20}}}],
    }
    reporter = site.external("lic1")
    del reporter.settings["name"]
    reporter.settings["reporters"]["allow_root"] = ["lmstat"]
    server = reporter.folder / "state" / "state"
    server.write_text("answer=12\n")
    reporter.script("lmstat", SCRIPT, interval=0.5, timeout=0.5, user="root")

    def held() -> object:
        return site.snapshot().locations["pool:matlab"].values.get("lic_free")

    def unknown() -> Absent | None:
        reading = held()
        return reading if isinstance(reading, Absent) and reading.presence is Presence.UNKNOWN else None

    site.broker.start()
    reporter.start()
    site.until(lambda: held() == 12)
    assert reporter.status()["agent"]["name"] == "lic1"
    assert reporter.status()["agent"]["role"] == "reporter"

    server.write_text("answer=down\n")
    gone = site.until(unknown)
    assert gone.last == 12
    assert "exit status 3: lmstat: cannot connect" in gone.cause
    assert "exit status 3" in reporter.reporter("lmstat")["cause"]

    server.write_text("answer=7\n")
    site.until(lambda: held() == 7)
    assert site.snapshot().locations["pool:matlab"].reporters["lic1/lmstat"].cause == ""


def test_an_identity_that_no_type_names_gives_nothing_and_says_so(site: Site) -> None:
    site.broker.resources = {
        "types": [LIC],
        "pools": [{"name": "matlab", "resources": {"lic_free": {"base": 20}}}],
    }
    reporter = site.external("other")
    reporter.script("lmstat", "#!/bin/sh\necho '{\"lic_free\": 3}'\n", interval=0.5)
    site.broker.start()
    reporter.start()
    site.until(lambda: "only 'lic1' reports it" in reporter.reporter("lmstat").get("cause", ""))
    reading = site.snapshot().locations["pool:matlab"].values.get("lic_free")
    assert not isinstance(reading, int)


def test_why_the_broker_takes_a_value_of_it_or_does_not_is_told_where_the_reporter_runs(site: Site) -> None:
    site.broker.resources = {
        "types": [LIC],
        "pools": [{"name": name, "resources": {"lic_free": {"base": 20}}} for name in ("matlab", "ansys")],
    }
    reporter = site.external("lic1")
    reporter.script("lmstat", '#!/bin/sh\necho \'{"lic_free": 3, "lic_free@pool:ansys": 4}\'\n', interval=0.5)
    site.broker.start()
    reporter.start()
    site.until(lambda: site.snapshot().locations["pool:ansys"].values.get("lic_free") == 4)

    def explained(name: str) -> subprocess.CompletedProcess[str]:
        command = [*python("xce.agent.reporter_cli"), "explain", "--config"]
        command += [str(reporter.folder / "agent.yaml"), name]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)

    good, bad = explained("lic_free@pool:ansys"), explained("lic_free")
    assert (good.returncode, bad.returncode) == (0, 1), (good, bad)
    assert "lic_free@pool:ansys = 4" in good.stdout
    assert "lic_free   = 3" in bad.stdout
    words = "say lic_free@LOCATION: pool:ansys, pool:matlab"
    assert "broker     holds nothing" in bad.stdout
    assert "host " not in bad.stdout
    assert f"differs: {words}" in bad.stdout
    reporter.stop()
    gone = explained("lic_free")
    assert gone.returncode == 3
    assert gone.stderr.startswith("xce-reporter explain: the external reporter is not running")


def test_status_asks_the_reporter_whose_configuration_is_given(site: Site) -> None:
    external = site.external("licences")
    site.broker.start()
    external.start()
    site.until(external.status)
    command = [*python("xce.agent.reporter_cli"), "status", "--config", str(external.folder / "agent.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert "licences, pid" in done.stdout, done.stderr
    external.stop()
    gone = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert gone.returncode == 3
    assert gone.stderr.startswith("xce-reporter status: the external reporter is not running")
    assert gone.stderr.endswith("start it:  xce-reporter run\n")


@pytest.mark.parametrize(("arguments", "said"), [("status more", "'more'"), ("explain", "one RESOURCE")])
def test_a_slip_in_a_command_is_told_in_the_words_of_the_reporter(arguments: str, said: str) -> None:
    command = [*python("xce.agent.reporter_cli"), *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, said in done.stderr) == (2, True)
    assert f"usage: xce-reporter {arguments.split(maxsplit=1)[0]}" in done.stderr
    assert "agent" not in done.stderr
