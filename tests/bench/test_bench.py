"""The benchmarks' own parts: verdicts, stamps, protocols that they speak, and one small job in earnest."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
import zmq

from bench.figures import Result, cells, figure, ratio, verdict
from bench.goals import Goal
from bench.job import etcd, http2, redis, reports, xce, zmtp
from bench.job.hubs import HUBS
from bench.job.run import run
from bench.job.shared import FLAT_OUT, Job
from xce.model.message import Report
from xce.wire import codec

MOST = Goal(key="X", what="time", must=10, stretch=2, unit="ms")
LEAST = Goal(key="Y", what="rate", must=1, stretch=1.5, at_least=True)


@pytest.mark.parametrize(
    ("goal", "value", "expected"),
    [
        (MOST, 2.0, "stretch met"),
        (MOST, 2.1, "must met"),
        (MOST, 10.1, "MISSED"),
        (LEAST, 1.5, "stretch met"),
        (LEAST, 1.2, "must met"),
        (LEAST, 0.9, "MISSED"),
    ],
)
def test_a_median_is_judged_by_must_and_stretch(goal: Goal, value: float, expected: str) -> None:
    assert verdict(goal, Result(goal=goal.key, judged=figure([value, value, 99]))) == expected


def test_a_result_with_trouble_has_no_verdict_however_good_it_is() -> None:
    result = Result(goal="X", judged=figure([0.1]), trouble="reports were lost")
    assert verdict(MOST, result) == "reports were lost"
    assert cells(MOST, Result(goal="X"))[-1] == "not measured"


def test_a_ratio_pairs_the_repetitions() -> None:
    assert ratio([1, 4], [2, 2]).median == pytest.approx(1.25)
    assert (ratio([1, 4], [2, 2]).least, ratio([1, 4], [2, 2]).greatest) == (0.5, 2)


def test_a_stamped_tick_is_one_that_the_broker_can_read() -> None:
    frame = reports.Frame(xce.tick(7, 3, 20), heads=reports.HEADS)
    before = time.monotonic_ns()
    report = codec.decode_for_broker(bytes(frame.stamp(before, 41)))
    assert isinstance(report, Report)
    assert report.sequence == 41
    assert sum(len(feed.values) for feed in report.feeds) == 20
    assert report.feeds[1].values[reports.SENT] == before
    assert report.feeds[1].values[reports.NUMBER] == 41


@pytest.mark.parametrize("name", ["redis SET", "redis HSET", "NATS KV", "mosquitto"])
def test_a_stamp_reaches_every_copy_of_a_report_in_a_peers_frame(name: str) -> None:
    hub, job = HUBS[name], Job(hub=name)
    stamped = [bytes(hub.frame(job, 1, 1).stamp(when, when)) for when in (1, 2)]
    assert len(stamped[0]) == len(stamped[1])
    assert stamped[0].count((1).to_bytes(8, "big")) == stamped[1].count((2).to_bytes(8, "big")) > 0


def test_replies_of_redis_are_parsed_wherever_the_stream_is_cut() -> None:
    data = b"*3\r\n$7\r\nmessage\r\n$1\r\nd\r\n$4\r\n\r\n\r\n\r\n:5\r\n$-1\r\n*1\r\n$-1\r\n"
    whole, rest = redis.parsed(data)
    assert (whole, rest) == ([[b"message", b"d", b"\r\n\r\n"], 5, None, [None]], b"")
    for cut in range(len(data)):
        first, rest = redis.parsed(data[:cut])
        second, rest = redis.parsed(rest + data[cut:])
        assert (first + second, rest) == (whole, b"")


def test_frames_of_zmtp_are_split_wherever_the_stream_is_cut() -> None:
    bodies = [b"", b"short", b"y" * 255, b"z" * 256]
    data = b"".join(map(zmtp.framed, bodies))
    for cut in range(len(data)):
        first, rest = zmtp.split(data[:cut])
        second, rest = zmtp.split(rest + data[cut:])
        assert ([body for _, body in first + second], rest) == (bodies, b"")


@pytest.fixture
def router() -> Iterator["zmq.Socket[bytes]"]:
    """A ROUTER of libzmq that drops who does not answer its pings at once."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger, socket.rcvtimeo = 0, 5000
        socket.heartbeat_ivl, socket.heartbeat_timeout = 20, 200
        yield socket


def test_a_plain_socket_speaks_with_a_zeromq_router(router: "zmq.Socket[bytes]") -> None:
    link = zmtp.Link(str(router.bind_to_random_port("tcp://127.0.0.1")))
    for body in (b"hello", b"x" * 300):
        link.send(zmtp.framed(body))
        name, said = router.recv_multipart()
        assert said == body
        router.send_multipart([name, said])
        assert link.messages(5) == [body]


def test_a_plain_socket_answers_pings(router: "zmq.Socket[bytes]") -> None:
    link = zmtp.Link(str(router.bind_to_random_port("tcp://127.0.0.1")))
    assert link.messages(0.5) == []
    link.send(zmtp.framed(b"still here"))
    assert router.recv_multipart()[1] == b"still here"


def test_a_plain_socket_refuses_a_server_that_wants_keys(router: "zmq.Socket[bytes]") -> None:
    router.curve_server = 1
    router.curve_publickey, router.curve_secretkey = zmq.curve_keypair()
    with pytest.raises(ConnectionError, match="closed"):
        zmtp.Link(str(router.bind_to_random_port("tcp://127.0.0.1")))


@pytest.fixture
def grpc_port() -> Iterator[str]:
    """Of a server of gRPC that says what it is told, and refuses what is empty."""

    def echo(request: bytes, context: Any) -> bytes:
        if not request:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "nothing")
        return request

    service, method = etcd.TRANSACTION[1:].split("/")
    calls = {method: grpc.unary_unary_rpc_method_handler(echo)}
    handler = grpc.method_handlers_generic_handler(service, calls)
    server = grpc.server(ThreadPoolExecutor(2), handlers=[handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield str(port)
    server.stop(None).wait()


def test_a_plain_socket_calls_a_grpc_server_and_knows_whose_answer_is_whose(grpc_port: str) -> None:
    link = http2.Link(grpc_port, etcd.TRANSACTION)
    asked = {link.call(body): body for body in (b"a", b"x" * 16_000, b"b" * 300)}
    answered: dict[int, bytes] = {}
    while len(answered) < len(asked):
        answered.update(link.answers())
    assert answered == asked


def test_a_call_that_a_grpc_server_refuses_is_an_error(grpc_port: str) -> None:
    link = http2.Link(grpc_port, etcd.TRANSACTION)
    link.call(b"")

    def wait() -> None:
        while not link.answers():
            pass

    with pytest.raises(ConnectionError, match="refused"):
        wait()


def test_frames_of_http2_are_split_wherever_the_stream_is_cut() -> None:
    data = b"\0\0\2\0\1\0\0\0\5ab" + b"\0\0\0\4\1\0\0\0\0"
    for cut in range(len(data)):
        first, rest = http2.split(data[:cut])
        second, rest = http2.split(rest + data[cut:])
        assert (first + second, rest) == ([(0, 1, 5, b"ab"), (4, 1, 0, b"")], b"")


def test_a_small_job_on_the_floor_loses_nothing_and_costs_something() -> None:
    job = Job(hub="bare ROUTER", hosts=20, rounds=20, phases=(FLAT_OUT, 200.0), seconds=0.5)
    outcome = run(job)
    assert outcome.fault == ""
    assert [phase.reports for phase in outcome.phases] == [400, 100]
    assert all(phase.hub_s > 0 for phase in outcome.phases)
