"""`python -m xce.agent` is `xce-agent`."""

import sys

from xce.agent.cli import main

sys.exit(main())
