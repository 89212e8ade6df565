"""Key files: what is written can be read by us and by ZeroMQ, and a file that is not safe is refused in
words.
"""

import os
from pathlib import Path

import pytest
import zmq.auth

from xce.wire import keys


def test_a_saved_key_is_the_key_that_is_loaded(tmp_path: Path) -> None:
    key = keys.new("node17", "agent", ("node[0-9]*", "spare"))
    keys.save(key, tmp_path / "node17.key")
    assert keys.load(tmp_path / "node17.key", secret=True) == key
    assert oct((tmp_path / "node17.key").stat().st_mode & 0o777) == "0o600"


def test_zeromqs_own_reader_reads_our_files(tmp_path: Path) -> None:
    key = keys.new("node17", "agent")
    keys.save(key, tmp_path / "node17.key_secret")
    assert zmq.auth.load_certificate(tmp_path / "node17.key_secret") == (key.public, key.secret)


def test_a_public_file_holds_no_secret(tmp_path: Path) -> None:
    key = keys.new("node17", "agent")
    keys.save(keys.KeyPair(name="node17", role="agent", public=key.public), tmp_path / "node17.pub")
    assert key.secret.decode() not in (tmp_path / "node17.pub").read_text()
    assert keys.load(tmp_path / "node17.pub", secret=False).public == key.public
    with pytest.raises(keys.KeyFileError, match="secret-key is missing"):
        keys.load(_closed(tmp_path / "node17.pub"), secret=True)


def test_the_secret_is_never_shown() -> None:
    key = keys.new("node17", "agent")
    assert key.secret.decode() not in repr(key)


def test_a_file_and_its_name_are_on_disk_when_it_is_saved_or_replaces_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    keys.save(keys.new("node17", "agent"), tmp_path / "node17.next")
    assert synced[0].startswith(f"{tmp_path}/.node17.next.")
    assert synced[1:] == [str(tmp_path)]
    keys.replace(tmp_path / "node17.next", tmp_path / "node17.key")
    assert synced[2:] == [str(tmp_path)]
    assert os.listdir(tmp_path) == ["node17.key"]


def test_an_existing_file_is_never_replaced(tmp_path: Path) -> None:
    keys.save(keys.new("a", "agent"), tmp_path / "a.key")
    before = (tmp_path / "a.key").read_bytes()
    with pytest.raises(keys.KeyFileError, match="exists already"):
        keys.save(keys.new("a", "agent"), tmp_path / "a.key")
    assert (tmp_path / "a.key").read_bytes() == before


@pytest.mark.parametrize(
    ("mode", "secret", "words"),
    [(0o640, True, "mode 640 is too open; chmod 600"), (0o664, False, "mode 664 is too open; chmod 644")],
)
def test_a_file_that_others_can_use_is_not_trusted(
    tmp_path: Path, mode: int, secret: bool, words: str
) -> None:
    path = tmp_path / "a.key"
    keys.save(keys.new("a", "agent"), path)
    path.chmod(mode)
    with pytest.raises(keys.KeyFileError, match=words):
        keys.load(path, secret=secret)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_another_users_file_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "a.key"
    keys.save(keys.new("a", "agent"), path)
    os.chown(path, 65534, 65534)
    with pytest.raises(keys.KeyFileError, match="belongs to user 65534"):
        keys.load(path, secret=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "public-key is missing"),
        ("rubbish", "line 1: expected 'metadata'"),
        ('curve\n    public-key = "short"\n', "public-key is missing or not 40 characters"),
        ("curve\n    public-key = unquoted\n", "line 2"),
    ],
)
def test_a_file_that_is_no_key_is_refused_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "a.pub"
    path.write_text(text)
    with pytest.raises(keys.KeyFileError, match=words):
        keys.load(path, secret=False)


def test_a_pair_that_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    one, two = keys.new("a", "agent"), keys.new("a", "agent")
    mixed = keys.KeyPair(name="a", role="agent", public=one.public, secret=two.secret)
    keys.save(mixed, tmp_path / "a.key")
    with pytest.raises(keys.KeyFileError, match="do not belong together"):
        keys.load(tmp_path / "a.key", secret=True)


def test_a_directory_gives_its_good_keys_and_names_the_bad_ones(tmp_path: Path) -> None:
    for name in ("b", "a"):
        keys.save(
            keys.KeyPair(name=name, role="agent", public=keys.new(name, "agent").public),
            tmp_path / f"{name}.pub",
        )
    (tmp_path / "c.pub").write_text("rubbish")
    (tmp_path / "ignored.txt").write_text("rubbish")
    good, problems = keys.load_directory(tmp_path)
    assert [key.name for key in good] == ["a", "b"]
    assert len(problems) == 1
    assert "c.pub" in problems[0]


@pytest.mark.parametrize(
    ("name", "role", "hosts"), [("a b", "agent", ()), ("a", "king", ()), ("a", "agent", ('"',))]
)
def test_names_that_could_not_be_read_back_are_refused(name: str, role: str, hosts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="cannot make a key"):
        keys.new(name, role, hosts)


def _closed(path: Path) -> Path:
    path.chmod(0o600)
    return path
