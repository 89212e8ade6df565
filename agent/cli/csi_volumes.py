"""`xce-agent csi volumes`: volumes of plugins that bindings of this host have, as the agent knows them."""

from typing import Any

from xce.agent.cli import GOOD, TROUBLE, client, output
from xce.agent.cli.options import Options
from xce.model import human

Document = dict[str, Any]
HEADERS = (
    *("VOLUME", "PLUGIN", "ID", "STATE", "BINDINGS", "GROWN", "BYTES", "USED", "AVAILABLE", "ASKED"),
    "NOTE",
)


def show(options: Options) -> int:
    """Ask the agent and print."""
    path = client.socket_path(options.get("--socket"), options.get("--config"))
    volumes = client.ask(path, op="csi-volumes")["volumes"]
    if options.has("--json"):
        output.print_json(volumes)
    elif volumes:
        output.table(HEADERS, [_row(one) for one in volumes])
    else:
        print("no volumes of CSI plugins are in use")
    return TROUBLE if any(one["unmet"] for one in volumes) else GOOD


def _row(one: Document) -> tuple[str, ...]:
    figures = one["statistics"]
    said = "the plugin says that its condition is not normal" if figures.get("abnormal") else ""
    sizes = [figures.get(f"bytes_{name}") for name in ("total", "used", "available")]
    shown = ["" if size is None else str(size) for size in sizes]
    return (
        *(one["source"], one["plugin"], one["volume"], one["state"], ", ".join(one["bindings"])),
        str(one["bytes"] or ""),
        *shown,
        human.ago(one["statistics_age_s"]),
        "; ".join(filter(None, (one["unmet"], one["problem"], said))),
    )
