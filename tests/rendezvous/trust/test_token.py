"""Tests of the token: where it may be, how long it must be, and that nothing shows it."""

import os
import pickle
import re
import string
from pathlib import Path
from random import Random

import pytest
from ft_run.errors import UsageError
from ft_run.rendezvous.trust import source, token
from ft_run.rendezvous.trust.source import TrustOptions, read_trust
from ft_run.rendezvous.trust.token import Token, checked, new_token, read_token, write_token

GOOD = "3b1f6c0a9d7e48258c4f20d1e6a7b935"


def refused(text: str) -> str:
    with pytest.raises(UsageError) as error:
        checked(Token(text), "FT_RUN_TOKEN")
    return error.value.sentence


def file_sentence(path: Path) -> str:
    with pytest.raises(UsageError) as error:
        read_token(str(path), "--token-file")
    return error.value.sentence


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(GOOD)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("text", ["x", "7" * 38, "a" * 31, "A" * 31, "x" * 21, "pass word" * 2])
def test_what_can_be_guessed_is_refused_and_not_shown(text: str) -> None:
    sentence = refused(text)
    assert "less than 128 bits; expected one made by ft-run token." in sentence
    assert text not in sentence.replace("characters", "") or len(text) < 3


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a" * 64, "is too regular to be random"),
        ("0123456789abcdef" * 2, "is too regular to be random"),
        ("correct horse " * 9, "is too regular to be random"),
        ("a" * 63 + "b", "is too regular to be random"),
        ("0" * 60 + "1234", "is too regular to be random"),
        ("\0" * 50, "contains control characters"),
        (GOOD + "\0", "contains control characters"),
        (GOOD + "\n" + GOOD, "contains control characters"),
        (GOOD + "\x1b", "contains control characters"),
    ],
)
def test_long_token_that_is_not_random_is_refused(text: str, reason: str) -> None:
    sentence = refused(text)
    assert f"{reason}; expected one made by ft-run token." in sentence
    assert text not in sentence


def test_random_tokens_of_every_alphabet_are_accepted() -> None:
    random = Random(1)
    signs = string.ascii_letters + string.digits + "-_"
    shortest = {string.digits: 39, "01": 128, "0123456789abcdef": 32, signs: 22}
    for alphabet, length in shortest.items():
        for _ in range(2000):
            text = "".join(random.choices(alphabet, k=length))
            assert checked(Token(text), "FT_RUN_TOKEN").reveal() == text
    for _ in range(100):
        assert checked(new_token(), "FT_RUN_TOKEN")


@pytest.mark.parametrize(
    "text",
    ["314159265358979323846264338327950288419", GOOD, "Tr0ub4dor-3xAmple-9Kq_Z"],
)
def test_128_bits_of_text_are_taken(text: str) -> None:
    assert checked(Token(f"\n {text}\t\n"), "FT_RUN_TOKEN").reveal() == text


def test_an_empty_token_is_refused() -> None:
    assert refused(" \n") == (
        "the token of FT_RUN_TOKEN is empty; expected one made by ft-run token."
    )


def test_nothing_shows_it() -> None:
    secret = new_token()
    options = TrustOptions(token=secret)
    for text in (repr(secret), str(secret), f"{secret}", repr(options), str(hash(secret))):
        assert secret.reveal() not in text
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(secret)
    assert new_token() != new_token()
    assert hash(new_token()) == hash(new_token())


def test_a_file_of_this_user_alone_is_read(file: Path) -> None:
    assert read_token(str(file), "--token-file").reveal() == GOOD
    file.chmod(0o400)
    assert read_token(str(file), "--token-file").reveal() == GOOD


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o660, 0o602, 0o644])
def test_a_file_that_is_open_to_others_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert file_sentence(file) == (
        f"the token file {file} (--token-file) is accessible to other users (mode {mode:04o}); "
        f"run chmod 600 {file}."
    )


@pytest.mark.parametrize(
    ("uid", "mode", "wrong"),
    [
        (0, 0o440, ""),
        (0, 0o444, "accessible to other users (mode 0444)"),
        (0, 0o460, "accessible to other users (mode 0460)"),
        (1000, 0o440, "accessible to other users (mode 0440)"),
        (1001, 0o600, "belongs to another user (uid 1001)"),
    ],
)
def test_a_volume_of_root_may_be_read_by_the_group_of_its_pod(
    monkeypatch: pytest.MonkeyPatch, uid: int, mode: int, wrong: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = os.stat_result((0o100000 | mode, 0, 0, 1, uid, 0, 10, 0, 0, 0))
    if not wrong:
        token._refuse_open(found, "t", "the token file t")
        return
    with pytest.raises(UsageError, match=re.escape(wrong)):
        token._refuse_open(found, "t", "the token file t")


def test_what_is_no_token_file(tmp_path: Path) -> None:
    assert "No such file" in file_sentence(tmp_path / "none")
    assert "Is a directory" in file_sentence(tmp_path)
    path = tmp_path / "binary"
    path.write_bytes(os.urandom(100) + b"\xff")
    path.chmod(0o600)
    assert "is not text" in file_sentence(path)
    path.write_text("x" * 5000)
    assert "more than 4096 bytes" in file_sentence(path)


def test_a_new_file_is_closed_to_others_and_none_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "new"
    mask = os.umask(0)
    try:
        write_token(str(path), Token(GOOD))
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_token(str(path), "--token-file").reveal() == GOOD
    with pytest.raises(UsageError, match="File exists"):
        write_token(str(path), new_token())
    assert path.read_text() == f"{GOOD}\n"


def test_a_missing_package_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "find_spec", lambda _: None)
    with pytest.raises(UsageError) as error:
        read_trust(TrustOptions(token_file=str(file)))
    assert error.value.sentence == (
        "--token-file needs the package cryptography, which is not installed; run pip install "
        "'ft-run[tls]' (or pip install cryptography)."
    )


def test_nothing_given_is_plain_text() -> None:
    assert read_trust(None) is None
