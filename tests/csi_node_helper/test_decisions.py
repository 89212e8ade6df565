"""The pure parts: what answers mean, what is hidden, which files and registrations are taken."""

import asyncio
import base64
import os
import typing
from pathlib import Path
from types import SimpleNamespace

import pytest

from xce.csi_node_helper import credentials, registration, verbs
from xce.csi_node_helper.redact import HIDDEN, Redactor
from xce.model import csi
from xce.model.csi import AGAIN, Backoff, Outcome


@pytest.mark.parametrize("code", [1, 2, 4, 13, 14, 15, 17, 99])
def test_a_code_without_a_meaning_in_csi_says_nothing_of_what_was_done(code: int) -> None:
    assert verbs.outcome(code) is Outcome.UNCERTAIN


@pytest.mark.parametrize("code", [3, 5, 6, 7, 8, 9, 11, 16])
def test_a_refusal_is_not_asked_again(code: int) -> None:
    assert verbs.outcome(code) is Outcome.REFUSED
    assert verbs.outcome(code) not in AGAIN


def test_a_busy_volume_is_asked_again_and_a_call_that_is_not_there_is_not() -> None:
    assert verbs.outcome(10) is Outcome.BUSY
    assert Outcome.BUSY in AGAIN
    assert verbs.outcome(12) is Outcome.UNSUPPORTED
    assert Outcome.UNSUPPORTED not in AGAIN


def test_pauses_double_up_to_the_most() -> None:
    pauses = [Backoff(0.5, 30).delay(attempt) for attempt in (1, 2, 3, 7, 1000)]
    assert pauses == [0.5, 1, 2, 30, 30]


def test_each_class_of_calls_has_a_deadline() -> None:
    assert set(verbs.DEADLINES_S) == set(typing.get_args(csi.Call))


@pytest.mark.parametrize(
    "text",
    [
        "cannot log in with s3cr3t w/rd",
        "cannot log in with s3cr3t%20w%2Frd",
        "b64 czNjcjN0IHcvcmQ=",
        "map[password:s3cr3t w/rd]",
        "s3cr3t+w%2Frd",
        *(
            f"Basic {base64.b64encode(f'{user}:s3cr3t w/rd!'.encode()).decode()}"
            for user in ("a", "bc", "def")
        ),
    ],
)
def test_a_secret_is_hidden_in_every_form(text: str) -> None:
    hide = Redactor()
    hide.learn(["password=s3cr3t w/rd"])
    assert HIDDEN in hide(text)
    for form in ("s3cr3t", "czNjc", "MzY3IzdC", "NlY3JldC", "zM2NyM3"):
        assert form not in hide(text)


@pytest.mark.parametrize(
    "text",
    [
        r'{"password":"a\u0026b\u003cc:d@e/f\u003e"}',
        "https://u:a&b%3Cc%3Ad%40e%2Ff%3E@server",
        "https://server/a&b%3Cc:d@e%2Ff%3E",
        "sh: 'a&b<c:d@e/f>'",
    ],
)
def test_a_secret_is_hidden_as_other_languages_quote_it(text: str) -> None:
    hide = Redactor()
    hide.learn(["a&b<c:d@e/f>"])
    assert HIDDEN in hide(text)
    assert "b" not in hide(text).replace(HIDDEN, "")


def test_a_short_secret_hides_the_whole_text_and_a_text_without_any_stays() -> None:
    hide = Redactor()
    hide.learn(["x", "longer"])
    assert hide("option x is bad") == HIDDEN
    assert hide("exactly so") == "exactly so"


def test_the_longest_secret_is_hidden_first() -> None:
    hide = Redactor()
    hide.learn(["abc", "abcdef"])
    assert hide("abcdef abc") == f"{HIDDEN} {HIDDEN}"


def read(path: str) -> dict[str, str]:
    return asyncio.run(credentials.fetch(path, (), 5))


def secrets_file(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "secrets.json"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_secrets_are_read_from_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    assert read(secrets_file(tmp_path, '{"user": "joe"}')) == {"user": "joe"}
    assert read("") == {}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o601])
def test_a_file_that_others_could_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(credentials.CredentialsRefused, match="mode 0600"):
        read(secrets_file(tmp_path, "{}", mode))


def test_a_file_of_another_shape_is_refused_without_its_words(tmp_path: Path) -> None:
    for text in ('{"a": 7}', '["hidden-word"]', "hidden-word", '{"a": "hidden-word'):
        with pytest.raises(credentials.CredentialsRefused) as refused:
            read(secrets_file(tmp_path, text))
        assert "hidden-word" not in str(refused.value)


def test_a_link_and_a_pipe_are_no_files_of_secrets(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(secrets_file(tmp_path, "{}"))
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("link", "pipe", "none"):
        with pytest.raises(credentials.CredentialsRefused):
            read(str(tmp_path / name))


def info(**fields: object) -> SimpleNamespace:
    good = {
        "type": "CSIPlugin",
        "name": "a.example",
        "endpoint": "/x/csi.sock",
        "supported_versions": ["1.0.0"],
    }
    return SimpleNamespace(**{**good, **fields})


def test_a_csi_plugin_of_version_one_may_register() -> None:
    assert registration.refusal(info()) == ""
    assert registration.refusal(info(endpoint="unix:///x/csi.sock", supported_versions=[])) == ""


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"type": "DevicePlugin"}, "of type CSIPlugin"),
        ({"name": "../x"}, "name"),
        ({"name": "a" * 64}, "name"),
        ({"endpoint": "csi.sock"}, "no absolute path"),
        ({"supported_versions": ["0.3.0", "2.0.0"]}, "version 1"),
    ],
)
def test_other_registrations_are_refused_with_the_reason(fields: dict[str, object], words: str) -> None:
    assert words in registration.refusal(info(**fields))
