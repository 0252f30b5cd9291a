"""The colours of every picture and page: each has a name, and a shade for light and for dark surroundings."""

from __future__ import annotations

__all__ = ["COLOURS", "FULL", "SERIES", "css_variables", "dark_rules", "light"]

#: name → shade on white paper, shade on a dark screen. No two light shades are equal: the dark one is found by them.
COLOURS: dict[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#0f141a"),
    "ink": ("#1b1f24", "#e6edf3"),
    "faint": ("#57606a", "#9aa7b4"),
    "line": ("#d0d7de", "#30363d"),
    "blue": ("#2166ac", "#6cb2ff"),
    "orange": ("#b35806", "#f0a055"),
    "green": ("#2c7a3f", "#6fcf79"),
    "purple": ("#7b4ba6", "#c39be8"),
    "red": ("#b2182b", "#ff8078"),
    "teal": ("#11777b", "#5fd0cf"),
    "brown": ("#7a5a38", "#cfa67f"),
    "grey": ("#66707b", "#a3adb8"),
    "socket": ("#dfe6ee", "#26313f"),
    "root": ("#eaf1e0", "#25331f"),
    "switch": ("#f6ead7", "#3a2e1b"),
    "display": ("#f8dcdc", "#43201f"),
    "part": ("#f1f2f4", "#222a33"),
    "idle": ("#8c959f", "#6e7681"),
    "used": ("#b98900", "#e3b341"),
    "busy": ("#cc5a00", "#f0883e"),
    "full": ("#c11226", "#ff5c5c"),
}
#: what tells series apart, in this order
SERIES: tuple[str, ...] = ("blue", "orange", "green", "purple", "red", "teal", "brown", "grey")
#: share of a link or a memory that is in use, from which a colour holds [-]
FULL: tuple[tuple[float, str], ...] = ((0.0, "idle"), (0.001, "used"), (0.5, "busy"), (0.9, "full"))


def light(name: str) -> str:
    """The shade of a colour on white paper.

    Parameters
    ----------
    name : str
        A key of `COLOURS`.

    Returns
    -------
    str
        As CSS writes it.

    Examples
    --------
    >>> light("ink")
    '#1b1f24'
    """
    return COLOURS[name][0]


def dark_rules() -> str:
    """CSS that turns a drawing made for white paper dark where the reader's screen is; paper stays white.

    Returns
    -------
    str
        Rules on the attributes `fill` and `stroke`, which give way to them.

    Examples
    --------
    >>> dark_rules().splitlines()[1]
    '[fill="#ffffff"]{fill:#0f141a}[stroke="#ffffff"]{stroke:#0f141a}'
    """
    rules = [f'[fill="{a}"]{{fill:{b}}}[stroke="{a}"]{{stroke:{b}}}' for a, b in COLOURS.values()]
    return "\n".join(["@media screen and (prefers-color-scheme:dark){", *rules, "}"])


def css_variables() -> str:
    """CSS that gives every colour its name, for pages.

    Returns
    -------
    str
        Custom properties, once for light and once for dark screens.

    Examples
    --------
    >>> "--ink:#e6edf3" in css_variables()
    True
    """
    sides = [";".join(f"--{name}:{pair[side]}" for name, pair in COLOURS.items()) for side in (0, 1)]
    return f":root{{{sides[0]}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{sides[1]}}}}}"
