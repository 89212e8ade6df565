"""The vocabulary of XCE's node side: one meaning for each word, in code, messages, commands and docs.

Everything here is pure: no I/O, no clock, no randomness. Structs are frozen and valid once constructed;
state machines are tables (`model/transition.py`). Imports: msgspec, and PyYAML in `document.py` alone.
"""

VERSION = "0.2.0"
"""Of all of XCE; pyproject.toml says the same."""
