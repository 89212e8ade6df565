"""Node agents that others run for the same purpose: prometheus-node-exporter and collectd."""

import os
import shutil
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.children import Child, free_port, started

EXPORTER = "prometheus-node-exporter"
_PLUGINS = ("cpu", "load", "memory", "swap", "df", "disk", "interface", "vmem")


class Exporter:
    """A node_exporter that can be scraped."""

    def __init__(self, child: Child, port: int) -> None:
        self.child, self._port = child, port

    def scrape(self) -> bool:
        """One scrape; False when it does not listen yet."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=5) as answer:
                return bool(answer.read())
        except OSError:
            return False


def exporter_missing() -> str:
    """Why node_exporter cannot run here; '' when it can."""
    return "" if shutil.which(EXPORTER) else f"{EXPORTER} is not installed"


def collectd_missing() -> str:
    """The same of collectd."""
    return "" if shutil.which("collectd") else "collectd is not installed"


@contextmanager
def exporter(work: Path) -> Iterator[Exporter]:
    """A running node_exporter with what it collects by default; it may not listen yet."""
    port = free_port()
    with started([EXPORTER, f"--web.listen-address=127.0.0.1:{port}"], work / "exporter.log") as child:
        yield Exporter(child, port)


@contextmanager
def collectd(work: Path, scripts: Mapping[str, str], interval: int) -> Iterator[Child]:
    """A running collectd with eight plugins, and `exec` running each script at each interval."""
    base = work / "collectd"
    base.mkdir()
    os.chmod(base, 0o755)
    for name, text in scripts.items():
        (base / name).write_text(text)
        (base / name).chmod(0o755)
    runs = "".join(f' Exec "nobody" "{base}/{name}"\n' for name in scripts)
    (base / "collectd.conf").write_text(
        f'Hostname "node"\nFQDNLookup false\nBaseDir "{base}"\nPIDFile "{base}/pid"\n'
        f'PluginDir "/usr/lib/collectd"\nTypesDB "/usr/share/collectd/types.db"\nInterval {interval}\n'
        + "".join(f"LoadPlugin {plugin}\n" for plugin in (*_PLUGINS, "exec"))
        + f"<Plugin exec>\n{runs}</Plugin>\n"
    )
    with started(["collectd", "-f", "-C", str(base / "collectd.conf")], work / "collectd.log") as child:
        yield child
