"""Fuzzing without a framework: seeded cases for some seconds, damaged bytes, and messages full of odd values.

    def test_it() -> None:
        run(lambda chance: target(chance.damaged(GOOD)))

`XCE_FUZZ_SECONDS` says how long each target runs (a few seconds by default). Every case has a seed of its
own; one that fails names it, and `XCE_FUZZ_SEED=SEED:NUMBER` runs that case alone.
"""

import itertools
import os
import random
import secrets
import time
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec

SECONDS = float(os.environ.get("XCE_FUZZ_SECONDS", "3"))
SEED = os.environ.get("XCE_FUZZ_SEED", "")

TOKENS = (
    *(b'"', b"'", b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\0", b"\n", b"\r\n", b" ", b"\xef\xbb\xbf"),
    *(b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-0", b"12,5", b"9223372036854775808"),
    *(b"\\ud800", b"\\u0000", b"\xff", b"\xc0\x80", b"\xe2\x80\xae", b"\xf0\x9f\xa6\xa0", b"\x1b[2J"),
    *(b"\x90", b"\xc0", b"\xdc\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xdf\x00\x00\x00\x01", b"\xcb\x7f\xf0"),
    *(b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", b'"xce":1,', b'"type":', b"{" * 300, b"[" * 3000, b"9" * 400),
)
TEXTS = (
    *("", "a", "0", "-", ".", "..", "node1", "Ω", "é" * 200, "x" * 300, "x" * 2000, "a b", "a\nb", "a\0b"),
    *("\ufeffa", "\u202eabc", "\x1b[31m", "{", "null", "host:", "host:node1", "🦠", "%s", "../../etc"),
)
NUMBERS = (
    *(0, 1, -1, 2, 3, 7, 100, 255, 256, 65535, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)),
    *(0.0, -0.0, 0.5, 1e-9, 1e308, -1e308, 5e-324, 12.5),
)


def run(case: Callable[["Chance"], object], *, seconds: float = SECONDS) -> None:
    """Run cases until the time is over, at least one; a failure says how to have it again."""
    seed, _, number = (SEED or secrets.token_hex(4)).partition(":")
    end = time.monotonic() + seconds
    for count in itertools.count(int(number or 0)):
        try:
            case(Chance(f"{seed}:{count}"))
        except BaseException as error:
            error.add_note(f"again with: XCE_FUZZ_SEED={seed}:{count}")
            raise
        if number or time.monotonic() > end:
            print(f"seed {seed}: {count + 1} cases")
            return


class Chance(random.Random):
    """A source of chance that knows how things go wrong. `pools`: likely texts by name of a field."""

    def __init__(self, seed: str, pools: Mapping[str, Sequence[Any]] | None = None) -> None:
        super().__init__(seed)
        self.pools = pools or {}

    # ------------------------------------------------------------------------------------------- bytes

    def damaged(self, data: bytes, *, rounds: int = 4) -> bytes:
        """The bytes with a few things wrong with them, or (seldom) as they are."""
        for _ in range(self.randint(0, rounds)):
            data = self._damage(data)
        return data

    def _damage(self, data: bytes) -> bytes:
        begin = self.randint(0, len(data))
        end = min(len(data), begin + self.choice((0, 1, 1, 2, 5, 40)))
        match self.randrange(6):
            case 0:  # one bit
                if begin < len(data):
                    flipped = data[begin] ^ (1 << self.randrange(8))
                    return data[:begin] + bytes([flipped]) + data[begin + 1 :]
                return data
            case 1:
                return data[:begin] + self.randbytes(end - begin) + data[end:]
            case 2:
                return data[:begin] + self.choice(TOKENS) + data[end:]
            case 3:
                return data[:begin] + data[end:]
            case 4:  # a piece twice
                return data[:end] + data[begin:]
            case _:
                return data[:begin]

    def pieces(self, data: bytes) -> list[bytes]:
        """The bytes as a pipe might give them."""
        cuts = sorted(self.randint(0, len(data)) for _ in range(self.randrange(6)))
        return [data[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(data)])]

    # --------------------------------------------------------------------------------------- documents

    def text(self, field: str = "") -> str:
        """A text that this field might have, or one that it should not."""
        if field in self.pools and self.random() < 0.9:
            return str(self.choice(self.pools[field]))
        if self.random() < 0.2:
            return "".join(chr(self.choice((self.randrange(128), self.randrange(0xD800)))) for _ in range(9))
        return self.choice(TEXTS)

    def number(self) -> int | float:
        """A number, odd more often than not."""
        return self.choice((self.choice(NUMBERS), self.randrange(100), self.uniform(-10, 10_000)))

    def value(self, depth: int = 0) -> Any:
        """Any plain value."""
        match self.randrange(8 if depth < 3 else 6):
            case 0:
                return self.random() < 0.5
            case 1 | 2:
                return self.number()
            case 3 | 4:
                return self.text()
            case 5:
                return None
            case 6:
                return [self.value(depth + 1) for _ in range(self.randrange(4))]
            case _:
                return {self.text(): self.value(depth + 1) for _ in range(self.randrange(4))}

    def struct(self, kind: type[msgspec.Struct]) -> Any:
        """A struct of this class with fields at chance; many defaults are left as they are."""
        for left in range(99, -1, -1):  # with fewer and fewer fields: its constructor may check them together
            fields = {
                field.name: self.of(field.type, field.name)
                for field in msgspec.structs.fields(kind)
                if field.required or self.random() < 0.007 * left
            }
            try:
                return kind(**fields)
            except ValueError:
                continue
        raise AssertionError(f"no {kind.__name__} that can be constructed")

    def of(self, kind: Any, field: str = "") -> Any:
        """A value of a field's type."""
        origin, inner = typing.get_origin(kind), typing.get_args(kind)
        if origin is typing.Annotated:
            return self.choice((0, 1, 2, 500, 40_000)) if self.random() < 0.9 else self.of(inner[0], field)
        if origin in {typing.Union, types.UnionType}:
            return self.of(self.choice(inner), field)
        if origin is list:
            return [self.of(inner[0], field) for _ in range(self.choice((0, 1, 1, 2, 3)))]
        if origin is tuple:
            each = inner[:1] * self.choice((0, 1, 2)) if inner[1:] == (...,) else inner
            return tuple(self.of(one, field) for one in each)
        if origin is dict:
            return {
                self.text(field): self.of(inner[1], f"{field}[]") for _ in range(self.choice((0, 1, 1, 2, 4)))
            }
        return self._leaf(kind, field)

    def _leaf(self, kind: Any, field: str) -> Any:
        if kind is str:
            return self.text(field)
        if kind is bool:
            return self.random() < 0.5
        if kind is int:
            return int(self.number()) if self.random() < 0.3 else self.choice((0, 1, 2, 3, 500, 40_000))
        if kind is float:
            return float(self.number())
        if kind is type(None):
            return None
        if issubclass(kind, Enum):
            return self.choice(list(kind))
        return self.struct(kind)
