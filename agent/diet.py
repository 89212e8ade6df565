"""Import this first in a long-lived program: it keeps out what the standard modules would load for nothing.

Both have a documented or coded fallback. OpenSSL's hashes would cost 3.5 MB of resident memory (hashlib has
its own of all that we use), typing_extensions 0.8 MB (msgspec asks for it only if it is installed).
"""

import sys

UNWANTED = ("_hashlib", "typing_extensions")

for _name in UNWANTED:
    if _name not in sys.modules:
        sys.modules[_name] = None  # type: ignore[assignment]  # documented in the import system: not found
