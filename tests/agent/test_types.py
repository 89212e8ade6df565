"""Which types a node works by, whatever the order in which files, cluster and broker speak."""

from hypothesis import given
from hypothesis import strategies as st

from xce.agent.types import Types
from xce.model.builtin_types import BUILTIN_TYPES
from xce.model.resource import Kind, ResourceType, types_digest

GPUS = ResourceType(name="gpus", kind=Kind.NUMERIC)
GPUS_TEXT = ResourceType(name="gpus", kind=Kind.STRING)
A, B = "/etc/xce/reporters.d/a.yaml", "/etc/xce/reporters.d/b.yaml"


def test_without_a_cluster_the_built_in_types_are_in_force() -> None:
    types = Types()
    assert types.in_force == BUILTIN_TYPES
    assert types.digest == types_digest(BUILTIN_TYPES.values())


def test_a_declared_type_waits_for_the_broker() -> None:
    types = Types()
    types.declare(A, [GPUS])
    assert "gpus" not in types.in_force
    assert types.waiting == {"gpus": A}
    assert types.take_untold() == {A: [GPUS]}
    assert types.take_untold() == {}
    types.judge({"gpus": ""})
    assert types.in_force["gpus"] == GPUS
    assert not types.waiting


def test_a_refused_type_is_named_with_its_file_and_the_reason() -> None:
    types = Types()
    types.declare(A, [GPUS])
    types.judge({"gpus": "new types are not admitted"})
    assert types.problems == {A: [f"type gpus in {A} is refused by the broker: new types are not admitted"]}
    assert "gpus" not in types.in_force


def test_a_refused_type_is_asked_about_again_on_request_and_others_are_not() -> None:
    types = Types()
    types.declare(A, [GPUS])
    types.declare(B, [ResourceType(name="good", kind=Kind.NUMERIC)])
    types.take_untold()
    types.judge({"gpus": "cannot be made durable now, ask again", "good": ""})
    types.ask_about_refused()
    assert types.take_untold() == {A: [GPUS]}
    types.judge({"gpus": ""})
    types.ask_about_refused()
    assert types.take_untold() == {}
    assert types.in_force["gpus"] == GPUS


def test_a_type_that_contradicts_the_cluster_is_named_with_both_places() -> None:
    types = Types([GPUS_TEXT])
    types.declare(A, [GPUS])
    assert types.in_force == {"gpus": GPUS_TEXT}
    assert types.problems == {
        A: [
            f"type gpus in {A} is not what the cluster says, which wins: "
            "only the file that it came from may change it"
        ]
    }
    types.judge({"gpus": "differs from gpus.yaml of agent:node7"})
    assert types.problems == {
        A: [f"type gpus in {A} is refused by the broker: differs from gpus.yaml of agent:node7"]
    }


def test_of_two_files_that_contradict_each_other_the_first_wins() -> None:
    types = Types()
    types.declare(B, [GPUS])
    types.declare(A, [GPUS_TEXT])
    assert types.problems == {B: [f"type gpus in {B} is not what {A} says, which came first"]}
    types.declare(A, [])
    assert types.problems == {}
    assert types.waiting == {"gpus": B}


def test_a_type_that_is_declared_anew_is_asked_about_anew() -> None:
    types = Types()
    types.declare(A, [GPUS])
    types.take_untold()
    types.judge({"gpus": ""})
    types.declare(A, [GPUS_TEXT])
    assert types.take_untold() == {A: [GPUS_TEXT]}
    assert types.waiting == {"gpus": A}
    types.declare(A, [])
    assert "gpus" not in types.in_force
    assert not types.untold


def test_alone_it_works_by_what_is_declared() -> None:
    types = Types(alone=True)
    types.declare(A, [GPUS])
    assert types.in_force["gpus"] == GPUS
    assert not types.take_untold()


def test_what_the_cluster_has_learned_from_a_file_goes_with_the_cluster_not_the_file() -> None:
    types = Types()
    types.declare(A, [GPUS])
    types.learn([*BUILTIN_TYPES.values(), GPUS])
    types.declare(A, [])
    assert types.in_force["gpus"] == GPUS
    types.learn(BUILTIN_TYPES.values())
    assert "gpus" not in types.in_force


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("declare"), st.sampled_from([A, B]), st.sampled_from([[], [GPUS], [GPUS_TEXT]])),
        st.tuples(st.just("learn"), st.sampled_from([[], [GPUS], [GPUS_TEXT]])),
        st.tuples(st.just("judge"), st.sampled_from(["", "no"])),
        st.tuples(st.just("ask_again")),
    )
)


@given(STEPS)
def test_a_name_is_in_force_or_waits_or_is_a_problem_and_the_version_follows(
    steps: list[tuple[object, ...]],
) -> None:
    types = Types([])
    for step in steps:
        before, version = dict(types.in_force), types.version
        match step:
            case ("declare", str(file), list(kinds)):
                types.declare(file, kinds)
            case ("learn", list(kinds)):
                types.learn(kinds)
            case ("judge", str(verdict)):
                types.judge({"gpus": verdict})
            case _:
                types.ask_again()
        assert (types.version > version) == (types.in_force != before)
        assert not types.waiting.keys() & types.in_force.keys()
        for file, kinds in types._declared.items():
            said = [*types.problems.get(file, ())]
            for kind in kinds:
                good = types.in_force.get(kind.name) == kind or kind.name in types.waiting
                assert good or any(kind.name in text and file in text for text in said)
