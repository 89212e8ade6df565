"""`docs/metrics.md`: every metric of the broker, from what a scrape gives."""

from xce.broker.metrics import NAMES, families
from xce.broker.tally import TROUBLED, Tally
from xce.model.message import BrokerStatus, Quality

HEAD = f"""\
# Metrics of the broker

Generated from `broker/metrics.py` by `python docs/generate.py`; do not edit. Served at `metrics` of
broker.yaml (default `http://127.0.0.1:7401/metrics`), as OpenMetrics or as Prometheus text, whichever is
asked for.

The number of series does not grow with the number of hosts. Hosts are counted by state, reporters summed by
name (the {NAMES} most frequent, the rest as `(others)`), pools and their resources have series of their own
(at most {NAMES}), and a place is named only where a reporter is in trouble (at most {TROUBLED} of them). Who
wants every value of every host follows the map itself ([protocol.md](protocol.md)).

Events are `reports`, `values`, `deltas`, `watchers_cut`, `rubbish` (messages that cannot be read),
`undelivered` (to peers that do not read), `dropped.…` (at the socket) and the like. Scrapes within 2 seconds
share one snapshot; a broker that does not answer gives 503 with the reason.

| metric | kind | labels | |
|---|---|---|---|
"""
TAIL = """
A start for alerts:

    xce_broker_trouble > 0                                     # xce-broker status names it
    xce_hosts{state="lost"} > 0
    sum(xce_readings{presence=~"stale|unknown"}) / sum(xce_readings) > 0.05
    xce_reporters{state=~"quarantined|refused|abandoned"} > 0  # xce_reporter_trouble says where
    rate(xce_broker_events_total{event="watchers_cut"}[5m]) > 0
    histogram_quantile(0.99, rate(xce_broker_commit_seconds_bucket[5m])) > 0.1
"""
_SUFFIX = {"counter": "_total", "info": "_info"}


def render() -> dict[str, str]:
    """The one file of this generator."""
    status = BrokerStatus(
        id="",
        software="",
        pid=0,
        epoch=0,
        incarnation="",
        revision=0,
        sequence=0,
        uptime_s=0,
        quality=Quality(),
    )
    rows = []
    for family in families(status, Tally(), 0):
        labels = getattr(family, "_labelnames", ())
        name = f"{family.name}{_SUFFIX.get(family.type, '')}"
        shown = ", ".join(f"`{label}`" for label in labels)
        rows.append(f"| `{name}` | {family.type} | {shown} | {family.documentation} |")
    return {"metrics.md": HEAD + "\n".join(rows) + "\n" + TAIL}
