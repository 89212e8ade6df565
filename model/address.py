"""Addresses of sockets as people write them: `HOST:PORT`, `[::1]:7400`. Pure."""


def host_port(text: str, *, lowest: int = 1) -> tuple[str, int] | None:
    """HOST and PORT, which is at least `lowest`; None if the text is no address."""
    host, _, port = text.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and lowest <= int(port[:6]) <= 65535):
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)
