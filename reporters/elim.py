"""LSF's elim output: `N name value name value ...`, again and again, into the same frames.

Pure. One line is usually one report of N pairs. As in LSF a report may also be spread over lines, and
several may stand on one line. Two things are stricter than LSF's reading of bare words, because they are
what keeps a value from being stored under another name:

- a line may break between pairs, not between a name and its value;
- a report whose count does not fit its words gives nothing, and reading starts anew with the next line.

A name never starts with a digit, a count always does: that tells the end of a report from its middle.
`-` is LSF's word for unknown. Words become numbers or strings when the type is known (`contract.check`).
"""

from xce.reporters.frame import LIMITS, Frame, Limits, Refusal, TooLong, escape


class Stream:
    """The output of one elim process. `feed` takes its lines in order."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self._line = 0
        self._begun = 0
        """Line on which the open report began; 0 when none is open."""
        self._count = 0
        self._words: list[str] = []

    def feed(self, line: bytes | TooLong) -> list[Frame | Refusal]:
        """What this line completes or breaks, in order; [] in the middle of a report and for a blank line."""
        self._line += 1
        if isinstance(line, TooLong) or len(line) > self.limits.elim_bytes:
            reason = f"longer than {self.limits.elim_bytes} bytes, the limit of one elim line"
            head = line.head if isinstance(line, TooLong) else line[:60]
            return [*self.drop("the next line was too long"), self._refusal(reason, head)]
        try:
            words = line.removeprefix(b"\xef\xbb\xbf").decode().split()
        except UnicodeDecodeError as error:
            return [
                *self.drop("the next line was not UTF-8"),
                self._refusal(f"not UTF-8 at byte {error.start + 1}", line),
            ]
        return self._read(words, line)

    def drop(self, reason: str) -> list[Refusal]:
        """Gives up a report that is open (silence, end of output)."""
        if not self._begun:
            return []
        pairs = len(self._words) // 2
        told = f"report of {self._count} values ended after {pairs}: {reason}"
        refusal = Refusal(
            reason=told, text=escape(" ".join([str(self._count), *self._words])), line=self._begun
        )
        self._begun, self._words = 0, []
        return [refusal]

    def _read(self, words: list[str], line: bytes) -> list[Frame | Refusal]:
        results: list[Frame | Refusal] = []
        place = 0
        while place < len(words):
            if words[place][0].isdigit() and self._begun and place:
                problem = f"expected a name, got '{escape(words[place], 63)}': a value is missing before it"
            elif words[place][0].isdigit():
                results += self.drop("the next report began")
                problem = self._begin(words[place])
                place += 1
            elif not self._begun:
                problem = "expected the number of values, then name and value for each"
            elif len(words) - place < 2:
                problem = f"'{escape(words[place], 63)}' has no value on its line"
            else:
                self._words += words[place : place + 2]
                place += 2
                problem = ""
            if not problem and self._begun and len(self._words) == 2 * self._count:
                follows = words[place][:1] if place < len(words) else ""
                if not follows or follows.isdigit():
                    results.append(self._finish())
                else:
                    problem = f"more than the {self._count} values that were announced"
            if problem:
                self._begun, self._words = 0, []
                return [*results, self._refusal(problem, line)]
        return results

    def _begin(self, word: str) -> str:
        if not word.isdecimal() or not word.isascii() or len(word) > 6:
            return f"'{escape(word, 63)}' is not a number of values"
        if int(word) > self.limits.values:
            return f"{word} values, more than {self.limits.values} in one report"
        self._begun, self._count, self._words = self._line, int(word), []
        return ""

    def _finish(self) -> Frame | Refusal:
        names, words = self._words[::2], self._words[1::2]
        begun, self._begun, self._words = self._begun, 0, []
        twice = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else set()
        refusals = [
            Refusal(name=escape(name, 63), reason="given twice in one report", line=begun)
            for name in sorted(twice)
        ]
        values: dict[str, object] = {
            name: word for name, word in zip(names, words, strict=True) if name not in twice
        }
        return Frame(values=values, refusals=refusals, tokens=True, line=begun)

    def _refusal(self, reason: str, line: bytes) -> Refusal:
        text = escape(line[:400].decode(errors="backslashreplace").strip())
        return Refusal(reason=reason, text=text, line=self._line)
