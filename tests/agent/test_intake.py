"""From lines to what is known and shown: refusals stay until they are over, types are waited for."""

from typing import Any

import pytest

from xce.agent.intake import SHOWN_S, Intake
from xce.agent.node import Node
from xce.agent.types import Types
from xce.linux.reaper import Exit
from xce.model.builtin_types import BUILTIN_TYPES
from xce.model.configuration import Mode, ReporterSettings
from xce.model.message import ReporterState
from xce.model.resource import Kind, ResourceType, Scope
from xce.model.value import Absent, Presence
from xce.reporters import contract
from xce.reporters.directory import Candidate
from xce.reporters.result import RunResult

X = ResourceType(name="x", kind=Kind.NUMERIC, minimum=0, interval=7)
Y = ResourceType(name="y", kind=Kind.NUMERIC)


class Desk:
    """An intake with a clock, and what it asked for."""

    def __init__(self, *cluster: ResourceType, identity: str = "") -> None:
        self.now = 100.0
        self.types = Types([*BUILTIN_TYPES.values(), *cluster])
        self.node = Node(self.types)
        self.rerun: list[str] = []
        self.assigned: dict[str, tuple[float | None, list[str]]] = {}
        self.kept = 0
        self.intake = Intake(
            self.node,
            now=lambda: self.now,
            rerun=self.rerun.append,
            assign=lambda name, interval, names: self.assigned.__setitem__(name, (interval, names)),
            keep_generations=self._keep,
            identity=identity,
        )

    def _keep(self) -> None:
        self.kept += 1

    def reporter(self, name: str, **settings: object) -> None:
        known = {one: account.candidate for one, account in self.intake.accounts.items()}
        own = ReporterSettings(**settings)  # type: ignore[arg-type]  # whatever a test wants
        self.intake.update({**known, name: Candidate(name=name, path=f"/r.d/{name}", settings=own)})
        self.intake.state(name, ReporterState(state="waiting", ttl_ms=60_000, interval_ms=30_000))

    def run(self, name: str, *lines: str, status: int = 0, **result: object) -> str:
        whole = RunResult(
            run=1,
            lines=[line.encode() for line in lines],
            exit=Exit(status),
            started_at=self.now,
            **result,  # type: ignore[arg-type]  # whatever a test wants
        )
        return self.intake.run_finished(name, whole)

    def shown(self, name: str) -> ReporterState:
        return self.node.states[name]


def test_a_good_run_is_taken_and_a_bad_value_shown_with_its_line() -> None:
    desk = Desk(X, Y)
    desk.reporter("r")
    assert desk.run("r", '{"x": 1, "y": 2}', '{"x": -1}') == ""
    assert desk.node.table.readings()["y"] == 2
    assert desk.shown("r").refused == 1
    assert desk.shown("r").cause == "line 2: x: below the minimum 0: -1"
    desk.run("r", '{"x": 1, "y": 2}')
    assert (desk.shown("r").refused, desk.shown("r").cause) == (0, "")


def test_a_run_that_gives_nothing_usable_counts_as_failed() -> None:
    desk = Desk(X)
    desk.reporter("r")
    assert "not JSON" in desk.run("r", "{oops")
    assert desk.run("r") == ""


def test_a_failed_run_leaves_the_values_and_gives_the_cause_once_they_are_stale() -> None:
    desk = Desk(X)
    desk.reporter("r")
    desk.run("r", '{"x": 1}')
    desk.run("r", '{"x": 2}', status=3, fault="exit status 3")
    assert desk.node.table.readings()["x"] == 1
    desk.node.table.settle(desk.now + 61)
    gone = desk.node.table.readings()["x"]
    assert gone == Absent(Presence.UNKNOWN, "exit status 3", 1)


@pytest.mark.parametrize("status", [78, 97])
def test_a_reporter_that_declines_makes_promised_and_given_names_not_applicable(status: int) -> None:
    """97 is an elim's; whoever looks for the reason must not look for a 78 in it."""
    desk = Desk(X, Y)
    desk.reporter("r", reports=["y"])
    assert isinstance(desk.node.table.readings()["y"], Absent)
    desk.run("r", '{"x": 1}')
    desk.run("r", status=status, not_applicable=True)
    readings = desk.node.table.readings()
    assert getattr(readings["x"], "cause", "") == f"the reporter ended with status {status}"
    assert {name: getattr(reading, "presence", None) for name, reading in readings.items()} == {
        "x": Presence.NOT_APPLICABLE,
        "y": Presence.NOT_APPLICABLE,
    }


def test_a_persistent_reporters_refusal_is_shown_until_its_name_is_given_well() -> None:
    desk = Desk(X, Y)
    desk.reporter("p", mode=Mode.PERSISTENT)
    desk.intake.frame("p", b'{"x": -1, "y": 1}', 1, desk.now)
    desk.intake.frame("p", b'{"y": 2}', 2, desk.now)
    assert desk.shown("p").cause.startswith("line 1: x")
    desk.intake.frame("p", b'{"x": 5}', 3, desk.now)
    assert desk.shown("p").cause == ""
    assert desk.node.table.readings() == {"x": 5, "y": 2}


def test_a_persistent_reporters_unreadable_line_is_shown_for_a_while() -> None:
    desk = Desk(X)
    desk.reporter("p", mode=Mode.PERSISTENT)
    desk.intake.frame("p", b"{oops", 1, desk.now)
    desk.now += SHOWN_S - 1
    desk.intake.frame("p", b'{"x": 1}', 2, desk.now)
    assert desk.shown("p").refused == 1
    desk.now += 2
    desk.intake.frame("p", b'{"x": 1}', 3, desk.now)
    assert desk.shown("p").refused == 0


def test_an_elim_is_read_by_its_own_rules_and_a_broken_report_is_told_at_its_end() -> None:
    desk = Desk(X, Y)
    desk.reporter("e", mode=Mode.ELIM)
    desk.intake.frame("e", b"2 x 1 y 2", 1, desk.now)
    assert desk.node.table.readings() == {"x": 1, "y": 2}
    desk.intake.frame("e", b"2 x 3", 2, desk.now)
    desk.intake.run_finished("e", RunResult(run=1, fault="ended", started_at=desk.now))
    assert "report of 2 values ended after 1" in desk.shown("e").cause
    assert desk.node.table.readings() == {"x": 1, "y": 2}


def test_a_value_whose_type_waits_for_the_broker_is_asked_for_again_when_it_is_let_in() -> None:
    desk = Desk()
    desk.reporter("r", types=[X])
    desk.run("r", '{"x": 1}')
    assert "waits for the broker to let it in" in desk.shown("r").cause
    assert not desk.rerun
    desk.types.judge({"x": ""})
    desk.intake.apply_types()
    assert desk.rerun == ["r"]
    desk.run("r", '{"x": 1}')
    assert desk.node.table.readings() == {"x": 1}


def test_a_declaration_that_is_not_in_force_is_trouble_of_its_reporter() -> None:
    desk = Desk(X)
    desk.reporter("r", types=[ResourceType(name="x", kind=Kind.STRING)])
    assert "is not what the cluster says" in desk.shown("r").cause
    desk.run("r", '{"x": "text"}')
    refused, declared = desk.shown("r").cause.splitlines()
    assert "expected a number" in refused
    assert "is not what the cluster says" in declared, "which is why it is refused"


def test_a_promise_of_a_name_without_a_type_is_trouble_until_it_has_one() -> None:
    desk = Desk(X)
    desk.reporter("r", reports=["x", "typo", "own"], types=[ResourceType(name="own", kind=Kind.STRING)])
    told = "reports: no such resource type 'typo' (declare it in resources.yaml, or under 'types:')"
    assert desk.shown("r").cause == told, "what waits for the broker may come yet"
    desk.types.learn([*BUILTIN_TYPES.values(), X, ResourceType(name="typo", kind=Kind.STRING)])
    desk.intake.apply_types()
    assert desk.shown("r").cause == ""
    unasked = Intake(
        Node(Types(alone=True)), now=float, rerun=str, assign=lambda *_: None, keep_generations=float
    )
    unasked.update({"r": Candidate(name="r", path="/r", settings=ReporterSettings(reports=["typo"]))})
    unasked.state("r", ReporterState(state="waiting"))
    assert unasked.node.states["r"].cause == "", "the cluster's types are not known here"


def test_the_interval_of_a_type_is_its_reporters_from_the_moment_it_gives_it() -> None:
    desk = Desk(X, ResourceType(name="z", kind=Kind.NUMERIC, reporter="r", interval=3))
    desk.reporter("r")
    desk.reporter("s")
    assert desk.assigned == {"r": (3, ["z"]), "s": (None, [])}
    desk.run("s", '{"x": 1}')
    assert desk.assigned == {"r": (3, ["z"]), "s": (7, [])}


def test_a_removed_reporter_takes_values_state_and_types_with_it() -> None:
    desk = Desk()
    desk.reporter("r", types=[X])
    desk.types.judge({"x": ""})
    desk.intake.apply_types()
    desk.run("r", '{"x": 1}')
    desk.intake.gone("r")
    assert desk.node.table.readings() == {}
    assert "r" not in desk.node.states
    assert "x" not in desk.types.in_force


def test_conditions_and_instances_are_passed_on() -> None:
    desk = Desk()
    desk.reporter("r")
    conditions = '[{"name":"full","reason":"99 %","hold":true}]'
    frame = f'{{"xce":1,"conditions":{conditions},"instances":[{{"id":"i","kind":"k"}}]}}'
    desk.run("r", frame)
    assert [(one.name, one.hold) for one in desk.shown("r").conditions] == [("full", True)]
    assert desk.node.references()["r"].count == 1
    assert desk.kept == 1
    desk.run("r", "{}")
    assert desk.shown("r").conditions == []
    assert desk.node.references()["r"].count == 1


@pytest.mark.parametrize("where", ["", "@pool:matlab"])
def test_an_external_reporter_gives_pool_values_under_its_identity(where: str) -> None:
    lic = ResourceType(name="lic", kind=Kind.NUMERIC, scope=Scope.POOL, reporter="lic1")
    desk = Desk(lic, X, identity="lic1")
    desk.reporter("lmstat")
    desk.run("lmstat", f'{{"lic{where}": 4, "x": 1}}')
    assert desk.node.table.readings() == {f"lic{where}": 4}
    assert "only a reporter on the host gives it" in desk.shown("lmstat").cause
    assert desk.assigned["lmstat"] == (None, ["lic"])


def test_until_all_were_heard_the_alphabet_decides_and_then_who_came_first() -> None:
    desk = Desk(X)
    desk.reporter("a")
    desk.reporter("b")
    desk.run("b", '{"x": 2}')
    desk.run("a", '{"x": 1}')
    assert desk.node.table.readings() == {"x": 1}
    desk.reporter("A")
    desk.run("A", '{"x": 3}')
    assert desk.node.table.readings() == {"x": 1}
    assert "'a' reports it already" in desk.shown("A").cause


def test_a_run_that_says_the_same_is_not_read_again_and_counts_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(X, Y)
    desk.reporter("r")
    read: list[list[bytes]] = []
    finish_run = contract.finish_run

    def counted(lines: Any, *context: Any, **rest: Any) -> contract.Outcome:
        read.append(lines)
        return finish_run(lines, *context, **rest)

    monkeypatch.setattr(contract, "finish_run", counted)
    says = '{"x": 1, "y": null}'
    assert not desk.intake.again("r", 1, desk.now), "nothing was said before"
    desk.run("r", says)
    desk.now += 30
    assert desk.intake.again("r", 2, desk.now)
    assert len(read) == 1
    assert desk.node.ages_ms(desk.now) == {"r": 0}
    desk.now += 61
    desk.node.table.settle(desk.now)
    assert isinstance(desk.node.table.readings()["x"], Absent)
    assert not desk.intake.again("r", 3, desk.now), "its time was over: it is said anew"
    desk.run("r", says)
    assert desk.node.table.readings()["x"] == 1
    desk.run("r", says, status=3, fault="exit status 3")
    assert desk.node.table.explain("x", desk.now).fault == "exit status 3"  # type: ignore[union-attr]
    assert not desk.intake.again("r", 5, desk.now)
    desk.run("r", says)
    assert desk.node.table.explain("x", desk.now).fault == ""  # type: ignore[union-attr]
    assert desk.intake.again("r", 6, desk.now)
    desk.types.learn([*BUILTIN_TYPES.values(), ResourceType(name="x", kind=Kind.NUMERIC, minimum=5), Y])
    desk.intake.apply_types()
    assert not desk.intake.again("r", 7, desk.now), "it may mean something else by the new types"
    desk.run("r", says)
    assert desk.shown("r").cause == "line 1: x: below the minimum 5: 1"
    assert not desk.intake.again("r", 8, desk.now), "what is refused is read each time"


def test_a_name_that_another_took_meanwhile_is_not_taken_back_by_saying_the_same() -> None:
    desk = Desk(X, Y)
    desk.reporter("a")
    desk.reporter("b")
    desk.run("a", '{"x": 1}')
    desk.run("a", '{"x": 1}')
    desk.now += 61
    desk.node.table.settle(desk.now)
    desk.run("b", '{"x": 2}')
    assert not desk.intake.again("a", 3, desk.now)
    desk.run("a", '{"x": 1}')
    assert desk.node.table.readings()["x"] == 2
    assert desk.shown("a").refused == 1
