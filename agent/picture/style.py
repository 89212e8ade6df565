"""The colours and letters of the picture. Light by default, dark where the page is. Pure data.

Colours of rails are told apart by their order in brightness too; health has a sign beside its colour.
"""

_RAILS = (
    *("#3b6fb6", "#c05621", "#2f855a", "#8b5fbf", "#b83280", "#0e7490", "#9a6b0e", "#6b7280"),
    *("#5a9bd5", "#e08e45", "#58b888", "#a98fd8", "#db6fa8", "#38a3c2", "#c9a227", "#94a3b8"),
)
_HEALTH = {
    "available": "#1a9e55",
    "unavailable": "#d97706",
    "lost": "#dc2626",
    "quarantined": "#9333ea",
    "unknown": "#8793a6",
}
_LIGHT = {
    ".page": "fill:#ffffff",
    ".panel": "fill:#f5f7fa;stroke:#dbe2ec",
    ".root": "fill:#ffffff;stroke:#d3dbe7;stroke-dasharray:4 3",
    ".switch": "fill:#e9eef6;stroke:#c2cede",
    ".tile": "stroke-width:1.2",
    ".gpu": "fill:#f3f1ff;stroke:#a79df0",
    ".accelerator": "fill:#fff4e3;stroke:#e5b567",
    ".nic": "fill:#e9f8f5;stroke:#84cdbf",
    ".free": "fill:#ffffff;stroke:#cfc9f5;stroke-dasharray:3 2",
    "text": "fill:#1a2433",
    ".subtitle,.muted,.what,.foot,.key": "fill:#5b6779",
    ".tag": "fill:#ffffff;stroke-width:1.6",
    ".hub": "fill:#eef8e0;stroke:#76b900;stroke-width:1.6",
    ".nvlink": "stroke:#76b900",
    ".xgmi": "stroke:#e0703a",
}
_DARK = {
    ".page": "fill:#0e131a",
    ".panel": "fill:#151c26;stroke:#283344",
    ".root": "fill:#111822;stroke:#344156",
    ".switch": "fill:#1d2735;stroke:#3a4a61",
    ".gpu": "fill:#232046;stroke:#6a5fd0",
    ".accelerator": "fill:#3a2c12;stroke:#a97c2e",
    ".nic": "fill:#10322d;stroke:#2f8171",
    ".free": "fill:#151c26;stroke:#4a4391",
    "text": "fill:#e8edf4",
    ".subtitle,.muted,.what,.foot,.key": "fill:#9aa7ba",
    ".tag": "fill:#151c26",
    ".hub": "fill:#1f2c10;stroke:#76b900",
}
_ALWAYS = {
    "text": 'font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif',
    ".title": "font-size:24px;font-weight:650",
    ".subtitle": "font-size:13px",
    ".panelname": "font-size:15px;font-weight:600",
    ".muted": "font-size:11px",
    ".name": "font-size:13px;font-weight:600",
    ".what": "font-size:11px",
    ".foot": "font-size:10px",
    ".key": "font-size:12px",
    ".ring": "font-size:12px;font-weight:600",
    ".tagname,.hubname": "font-size:11px;font-weight:600",
    ".count": "font-size:10px;font-weight:600",
    ".link": "fill:none;stroke-linecap:round;stroke-opacity:.75",
    ".sign": "fill:#ffffff;font-size:10px;font-weight:700",
    ".chip": "fill:#ffffff;font-size:9.5px;font-weight:600",
    ".slice": "fill:#ffffff;font-size:9.5px;font-weight:600",
    ".cell": "fill-opacity:.9",
}


def _rules(table: dict[str, str]) -> str:
    return "".join(f"{selector}{{{rules}}}" for selector, rules in table.items())


STYLE = (
    _rules(_ALWAYS)
    + _rules(_LIGHT)
    + _rules({f".rail-{at}": f"fill:{colour}" for at, colour in enumerate(_RAILS)})
    + _rules({f".h-{name}": f"fill:{colour}" for name, colour in _HEALTH.items()})
    + _rules({f".o-{name}": f"stroke:{colour}" for name, colour in _HEALTH.items()})
    + _rules({f".t-{name}": f"fill:{colour}" for name, colour in _HEALTH.items()})
    + _rules({".sign,.chip,.slice": "fill:#ffffff"})
    + f"@media (prefers-color-scheme:dark){{{_rules(_DARK)}"
    + _rules({f".t-{name}": f"fill:{colour}" for name, colour in _HEALTH.items()})
    + ".sign,.chip,.slice{fill:#ffffff}}"
)
