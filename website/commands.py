"""Pages generated from the command line: all commands with their flags, and all names to choose from."""

from __future__ import annotations

import argparse
import contextlib
import io
import re

from dissensus.cli import COMMANDS, parser
from dissensus.cli.lists import LISTS

LEFT_OUT = ("backbones",)  # more than a thousand names of timm


def page() -> str:
    """Every command: what it does, an example, and its flags with their values, defaults and help."""
    whole, _ = parser.build()
    (subparsers,) = (each for each in whole._actions if isinstance(each, argparse._SubParsersAction))
    parts = [
        "# Command line",
        "Generated from the options of the commands; `dissensus COMMAND --help` prints the same. Every command also "
        "takes `--config FILE.yaml`, in which options are written without dashes: `label_smoothing: 0.1`. Results go "
        "to stdout or `--out`, messages to stderr. A mistake is one line, and the exit code is 2.",
        _table(["flag of `dissensus` alone", ""], [_flag(each) for each in whole._actions if each.option_strings]),
    ]
    for name, entry in COMMANDS.items():
        about, _ = entry.texts()
        parts += [f"## dissensus {name}", about, f"```sh\n{entry.example}\n```"]
        for group in subparsers.choices[name]._action_groups:
            rows = [_flag(each) for each in group._group_actions if not isinstance(each, argparse._HelpAction)]
            heading = {"positional arguments": "argument", "options": "flag"}.get(group.title or "", group.title or "")
            if rows:
                parts += [group.description or "", _table([heading, ""], rows)]
    return "\n\n".join(part for part in parts if part) + "\n"


def names() -> str:
    """What `dissensus list` prints for every registry."""
    parts = ["# Names to choose from", "What `dissensus list` prints; `dissensus list backbones` has all of timm."]
    for what in LISTS:
        if what not in LEFT_OUT:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                COMMANDS["list"].function(what=what)
            rows = [re.split(r" {2,}", line.strip(), maxsplit=1) for line in printed.getvalue().splitlines()]
            parts += [f"## {what}", _table(["name", ""], [[f"`{name}`", *rest] for name, *rest in rows])]
    return "\n\n".join(parts) + "\n"


def _flag(action: argparse.Action) -> list[str]:
    """A flag as it is typed, with the name of its value, and its help."""
    value = "" if action.nargs == 0 else _value(action)
    flags = action.option_strings or [""]
    typed = ", ".join(" ".join(each for each in (flag, value) if each) for flag in flags)
    required = " (required)" if action.required and action.option_strings else ""
    text = re.sub(r"(?<![\w`-])--[a-z][a-z-]*", r"`\g<0>`", (action.help or "").replace("%%", "%"))
    return [f"`{typed}`" + required, text]


def _value(action: argparse.Action) -> str:
    name = action.metavar or (",".join(action.choices) if action.choices else action.dest.upper().replace("-", "_"))
    return f"{name} ..." if action.nargs == "+" else str(name)


def _table(headings: list[str], rows: list[list[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *([_escape(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _escape(cell: str) -> str:
    """Markdown of a cell: a bar would end it, and `<` and `*` are no markup here."""
    outside = re.split(r"(`[^`]*`)", cell.replace("|", "\\|"))
    return "".join(part if part.startswith("`") else re.sub(r"([<>*_])", r"\\\1", part) for part in outside)
