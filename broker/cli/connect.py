"""From a command's options to a client: which broker, with which keys."""

import argparse
import os
from pathlib import Path

from xce.broker.cli.options import CONFIGURATION, UsageError
from xce.broker.client import Broker, Client
from xce.model.configuration import BrokerFile


def connect(options: argparse.Namespace) -> Client:
    """A client for the broker that the options mean; raises `UsageError` or `KeyFileError`."""
    broker = chosen(options)
    try:
        return Client(broker, timeout=options.timeout)
    except ValueError as error:
        raise UsageError(str(error)) from error


def chosen(options: argparse.Namespace, configuration: Path = CONFIGURATION) -> Broker:
    """The broker that the options, the environment and the files of this host mean."""
    if options.broker:
        return _given(options.broker, options)
    settings = of_this_host(configuration)
    local = settings.local
    if not configuration.exists() and not os.path.exists(local) and not os.access(options.key, os.R_OK):
        raise UsageError(
            f"which broker? this host has none: no {configuration}, no {local}, no {options.key}",
            "give --broker tcp://HOST:7400 with --key and --broker-key, or set XCE_BROKER",
        )
    if local and (os.access(local, os.W_OK) or not os.access(options.key, os.R_OK)):
        return Broker(f"ipc://{local}")
    if not settings.listen:
        raise UsageError("which broker? this host's listens on no port", "give --broker, or set XCE_BROKER")
    return _given(_reachable(settings.listen[0]), options)


def of_this_host(configuration: Path) -> BrokerFile:
    """The settings of the broker on this host, the defaults where it has no file that can be read."""
    from xce.model import document, refusal  # noqa: PLC0415 - YAML costs 20 ms

    try:
        text = configuration.read_text()
    except OSError:
        return BrokerFile()
    try:
        return document.load(text, str(configuration), BrokerFile)
    except refusal.ConfigRefused as error:
        raise UsageError(str(error), "correct it, or give --broker") from error


def _given(endpoint: str, options: argparse.Namespace) -> Broker:
    if endpoint.startswith("ipc://"):
        return Broker(endpoint)
    if not endpoint.startswith("tcp://"):
        raise UsageError(f"{endpoint!r} is no broker", "expected tcp://HOST:PORT or ipc://PATH")
    return Broker.by_files(endpoint, options.key, options.broker_key)


def _reachable(listen: str) -> str:
    """The address at which this host reaches its own port."""
    address, _, port = listen.removeprefix("tcp://").rpartition(":")
    return f"tcp://127.0.0.1:{port}" if address in {"*", "0.0.0.0", "[::]"} else listen
