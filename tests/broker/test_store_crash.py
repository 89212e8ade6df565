"""Killed at any moment: every acknowledged fact is there again, without a gap, and no batch is half there."""

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from xce.broker.store import Loaded
from xce.broker.store.sqlite import SqliteStore

WRITER = Path(__file__).with_name("store_writer.py")
ROOT = WRITER.parents[2]
STORES, ROUNDS = 4, 15


def killed_writer(directory: Path, chance: random.Random) -> int:
    """Run a writer and kill it at a random moment; gives the last revision that it acknowledged."""
    with subprocess.Popen(
        [sys.executable, str(WRITER), str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
    ) as writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        if chance.random() < 0.8:  # the others may die in the middle of opening
            assert writer.stdout.readline(), writer.stderr.read().decode()
        time.sleep(chance.uniform(0, 0.06))
        writer.send_signal(signal.SIGKILL)
        said = writer.stdout.read().splitlines()
        assert writer.wait(10) == -signal.SIGKILL, writer.stderr.read().decode()
    return max((msgspec.json.decode(line)[1] for line in said), default=0)


def half_batches(loaded: Loaded) -> list[str]:
    """The op_ids whose facts or answer are not all there."""
    found = Counter((fact.op_id, fact.change.host) for fact in loaded.facts)  # type: ignore[union-attr]
    broken = [op_id for (op_id, size), count in found.items() if size != f"of{count}"]
    return broken + [op_id for op_id, _ in found if op_id not in loaded.answers]


def crash_rounds(directory: Path, seed: int) -> int:
    """All rounds on one store, which keeps its history; gives the revision reached."""
    directory.mkdir()
    chance = random.Random(seed)
    acknowledged = 0
    for _ in range(ROUNDS):
        acknowledged = max(acknowledged, killed_writer(directory, chance))
        store = SqliteStore(directory)
        loaded = store.load()
        assert store.close(10)
        assert loaded.revision >= acknowledged, f"seed {seed}: acknowledged facts are lost"
        assert half_batches(loaded) == [], f"seed {seed}"
        acknowledged = loaded.revision
    return acknowledged


def test_no_acknowledged_fact_is_lost_however_the_broker_is_killed(tmp_path: Path) -> None:
    """60 kills, four stores side by side; the seed is printed when one fails."""
    seeds = [random.randrange(1 << 30) for _ in range(STORES)]
    with ThreadPoolExecutor(STORES) as pool:
        runs = [pool.submit(crash_rounds, tmp_path / str(seed), seed) for seed in seeds]
        reached = [run.result(timeout=120) for run in runs]
    assert all(revision > 100 for revision in reached), "the writers hardly wrote"
