"""`xce-agent doctor`: what on this host would keep the agent from its work, with advice for each finding.

The checks run in a child: one that meets a dead file server hangs there, and is named here after a while.
"""

import json
import os
import select
import sys
import time
from collections.abc import Sequence

from xce.agent.cli import GOOD, TROUBLE, output
from xce.agent.cli.options import Options, UsageError

SUMMARY = "check this host: control groups, privileges, keys, broker, directories"
PROGRAM = "xce-agent doctor"
USAGE_TEXT = f"""\
usage: {PROGRAM} [--json] [--config FILE]

exit status: 0 no problem (there may be warnings), 1 a problem was found"""
PATIENCE_S = 8.0
"""For one check."""


def run(argv: Sequence[str]) -> int:
    """Run all checks; 1 if one of them found a problem."""
    if "--help" in argv:
        print(USAGE_TEXT)
        return GOOD
    options = Options(argv, flags=["--json", "--checks"], values=["--config"])
    if options.arguments:
        raise UsageError(f"cannot understand {options.arguments[0]!r}")
    if options.has("--checks"):
        return _check(options.get("--config"))
    findings = _from_child(options.get("--config"))
    if options.has("--json"):
        output.print_json(findings)
    else:
        rows = [(one["level"], one["what"], one["text"], one["advice"]) for one in findings]
        output.table(("", "CHECK", "FOUND", "WHAT TO DO"), rows)
    return TROUBLE if any(one["level"] == "problem" for one in findings) else GOOD


def _check(config_path: str) -> int:
    """The child: one JSON line before each check and one for what it found."""
    from xce.agent import checks  # noqa: PLC0415 - the parent needs none of it

    for name, check in checks.all_checks(config_path):
        print(json.dumps({"begins": name}), flush=True)
        for finding in check():
            print(
                json.dumps(
                    {"level": finding.level, "what": name, "text": finding.text, "advice": finding.advice}
                )
            )
        sys.stdout.flush()
    return GOOD


def _from_child(config_path: str) -> list[dict[str, str]]:
    """All findings; a check that does not end is itself a finding, and the last."""
    from xce.linux.spawn import spawn  # noqa: PLC0415

    ours, theirs = os.pipe2(os.O_CLOEXEC)
    argv = [sys.executable, "-P", "-m", "xce.agent", "doctor", "--checks"]
    argv += ["--config", config_path] if config_path else []
    # Not our stderr: a child that hangs must not hold the other end of somebody's pipe.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # as packages are, without a path
    child = spawn(argv, environment, fds={1: theirs, 2: theirs})
    os.close(theirs)
    findings: list[dict[str, str]] = []
    rest, said, current, deadline = b"", "", "start", time.monotonic() + PATIENCE_S
    while True:
        if not select.select([ours], [], [], max(0.0, deadline - time.monotonic()))[0]:
            text = f"did not end within {PATIENCE_S:g} s: pid {child.pid} hangs"
            advice = f"look where: cat /proc/{child.pid}/stack; a file server may be gone"
            return [*findings, {"level": "problem", "what": current, "text": text, "advice": advice}]
        data = os.read(ours, 65536)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"{"):
                said = line.decode(errors="replace")
                continue
            finding = json.loads(line)
            if "begins" in finding:
                current, deadline = finding["begins"], time.monotonic() + PATIENCE_S
            else:
                findings.append(finding)
    if said:
        advice = "please report it"
        findings.append(
            {"level": "problem", "what": current, "text": f"internal error: {said}", "advice": advice}
        )
    return findings
