"""The parser behind the command line: argparse, built from `COMMANDS`.

Flags are shown with dashes; underscores work too, and so do both in `--config` files.
"""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
import typing
from argparse import Action, ArgumentTypeError
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from dissensus import __version__
from dissensus._core.errors import DissensusError, UnknownNameError, short
from dissensus._core.options import Option, share
from dissensus.cli.command import COMMANDS, Command, Duration, PartOf, Share, fail


class Parser(argparse.ArgumentParser):
    """argparse, with errors in one line."""

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with code 2."""
        value = re.fullmatch(r"argument (\S+?)(?:/\S+)?: (.*)", message, flags=re.DOTALL)
        if value is not None and value[2].startswith("unknown "):
            fail(value[2])
        if value is not None:
            fail(f"{value[1]} {value[2].replace('expected one argument', 'needs a value')}")
        message = message.replace("the following arguments are required:", "required, but not given:")
        fail(f"{message} (see: {self.prog} --help)")


Actions = dict[str, Action]  # of a command, by parameter or option
VERIFY = "verify"


class Parsed(NamedTuple):
    """A command line: the command, the arguments of its function, and whether files are verified."""

    name: str
    arguments: dict[str, Any]
    verify: bool


def parse(argv: Sequence[str]) -> Parsed:
    """Return the command that was given, and the arguments of its function.

    Raises:
        DissensusError: for an unknown command or flag, with the nearest known one, or a config that cannot be read.
    """
    argv = [re.sub(r"^--[\w-]+", lambda flag: "--" + flag[0][2:].replace("_", "-"), each) for each in argv]
    argv = _join_negative(argv)
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        raise UnknownNameError("command", argv[0], COMMANDS)
    parser, actions = build()
    if argv and argv[0] in COMMANDS:
        configs = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        configs.add_argument("--config", nargs="?", action="append", default=[])
        for path in configs.parse_known_args(argv)[0].config:
            if path is not None:  # else the parser says what is missing
                _apply(path, actions[argv[0]])
    namespace, unknown = parser.parse_known_args(argv)
    values = vars(namespace)
    name = values["command"]
    if name is None:
        parser.error("a command is required, such as: dissensus demo")
    if unknown:
        known = [flag for action in actions[name].values() for flag in action.option_strings]
        raise UnknownNameError("argument", unknown[0].partition("=")[0], known, see=f"dissensus {name} --help")
    entry = COMMANDS[name]
    arguments: dict[str, Any] = {p.name: values[p.name] for p in entry.parameters()}
    arguments |= {group: {} for group in entry.groups}
    for group, option in entry.options():
        if option.name in values:
            arguments[group][option.name] = values[option.name]
    return Parsed(name, arguments, values.get(VERIFY, True))


def _join_negative(argv: Sequence[str]) -> list[str]:
    """Write `--budget -5m` as `--budget=-5m`: argparse takes -5 for a value, but -5m, -5% and -inf for flags."""
    joined: list[str] = []
    for text in argv:
        if re.fullmatch(r"-[\d.]+[smh%]|-(inf|nan)", text) and joined and re.fullmatch(r"--[\w-]+", joined[-1]):
            joined[-1] += f"={text}"
        else:
            joined.append(text)
    return joined


def build() -> tuple[Parser, dict[str, Actions]]:
    """Return the parser of all commands, and the actions of each."""
    parser = Parser(
        prog="dissensus",
        usage="dissensus COMMAND [options]",
        allow_abbrev=False,
        description="Diverse ensembles on frozen backbones: better out of distribution, and aware of it.",
        epilog="Start with: dissensus demo. Help on a command: dissensus COMMAND --help.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="versions of Dissensus and of what it needs")
    parser.add_argument("--print-completion", action=_Completion, metavar="SHELL", help="for bash, zsh or tcsh")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", parser_class=Parser)
    return parser, {name: _add_command(commands, name, entry) for name, entry in COMMANDS.items()}


def _add_command(commands: Any, name: str, entry: Command) -> Actions:
    about, texts = entry.texts()
    width = min(shutil.get_terminal_size().columns, 100) - 2
    words = ["dissensus", name]
    for p in entry.parameters():
        if p.default is p.empty:
            words.append(f"--{p.name} {p.name.upper()}" if p.kind is p.KEYWORD_ONLY else p.name.upper())
    parser = commands.add_parser(
        name,
        prog=f"dissensus {name}",
        usage=" ".join([*words, "[options]"]),
        help=re.split(r"\.\s|\.$", about)[0],
        description="\n\n".join(textwrap.fill(paragraph, width) for paragraph in about.split("\n\n")),
        epilog=f"Example: {entry.example}",
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=width),
    )
    parser.add_argument("--config", metavar="FILE", help="a YAML file with these options; flags override it")
    hints = typing.get_type_hints(entry.function)
    actions: Actions = {}
    for p in entry.parameters():
        given = p.default is not p.empty
        option = Option(p.name, hints[p.name], p.default if given else None, texts[p.name], "", None)
        required = {} if given or p.kind is not p.KEYWORD_ONLY else {"required": True}
        flag = _flag(p.name) if p.kind is p.KEYWORD_ONLY else p.name
        keywords = _about(option, flag)
        if given and p.kind is not p.KEYWORD_ONLY:
            keywords["nargs"] = "*" if "nargs" in keywords else "?"
        actions[p.name] = parser.add_argument(flag, default=option.default, **required, **keywords)
    if entry.reads:
        text = "compare features, runs and results with the checksums that were written with them; --no-verify skips it"
        option = Option(VERIFY, bool, True, text, "", None)
        actions[VERIFY] = parser.add_argument(_flag(VERIFY), default=True, **_about(option, _flag(VERIFY)))
    headings: dict[str, Any] = {}
    for group, option in entry.options():
        heading = option.group or group
        if heading not in headings:
            note = entry.groups[group].note if heading == group else ""
            headings[heading] = parser.add_argument_group(heading, note or None)
        actions[option.name] = headings[heading].add_argument(
            _flag(option.name), default=argparse.SUPPRESS, **_about(option, _flag(option.name))
        )
    return actions


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _about(option: Option, flag: str) -> dict[str, Any]:
    """Return the arguments of `add_argument` for an option: help with the default, type, number of values.

    `flag` is what the user knows it by: --name, or the bare name of a positional argument.
    """
    text = re.sub(r"`([a-z_]+)`", lambda name: _flag(name[1]), option.help.removesuffix("."))
    if option.default is not None and option.default is not False:
        text += f" (default: {'yes' if option.default is True else option.default})"
    about: dict[str, Any] = {"help": text.replace("%", "%%")}
    kind = _inner(option.type)
    if typing.get_origin(kind) is list:
        about["nargs"] = "+"
        kind = typing.get_args(kind)[0]
    if kind is bool:
        return {**about, "action": argparse.BooleanOptionalAction}
    one_of = partial(_one_of, flag, typing.get_args(kind))
    about["type"] = _converter(option.parse or CONVERTERS.get(kind, one_of))
    if typing.get_origin(kind) is Literal:
        about["choices"] = typing.get_args(kind)
    elif pattern := re.search(r"each as ([A-Z]+=[A-Z]+)", text):
        about["metavar"] = pattern[1]
    elif kind in METAVARS:
        about["metavar"] = METAVARS[kind]
    return about


def _inner(hint: Any) -> Any:
    """X of `X | None`."""
    kinds = typing.get_args(hint)
    return next(kind for kind in kinds if kind is not type(None)) if type(None) in kinds else hint


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise DissensusError(f"must be a whole number; got {short(text)}") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise DissensusError(f"must be a number; got {short(text)}") from None


def _one_of(flag: str, known: Sequence[str], text: str) -> str:
    if text not in known:
        raise UnknownNameError(flag, text, known)
    return text


def _duration(text: str) -> float:
    found = re.fullmatch(r"([0-9.]+)\s*([smh])", text.strip())
    try:
        seconds = float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]] if found else 0.0
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise DissensusError(f"must be a positive time such as 90s, 10m or 1h; got {short(text)}")
    return seconds


def _part(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text.strip())
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise DissensusError(f"must be K/N with K from 1 to N, such as 3/8; got {short(text)}")
    return int(found[1]), int(found[2])


CONVERTERS: dict[Any, Callable[[str], Any]] = {
    int: _whole, float: _number, Share: share, Duration: _duration, PartOf: _part, str: str
}  # fmt: skip
METAVARS: dict[Any, str] = {int: "N", float: "X", Share: "SHARE", Duration: "TIME", PartOf: "K/N"}


def _converter(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wrap a converter for argparse, which shows the text of `ArgumentTypeError` only."""

    def converted(text: str) -> Any:
        try:
            return convert(text)
        except DissensusError as error:
            raise ArgumentTypeError(str(error)) from None

    return converted


def _apply(path: str, actions: Actions) -> None:
    """Make the values of a YAML file the defaults of a command."""
    for key, value in _read_config(path).items():
        name = str(key).replace("-", "_")
        if name not in actions:
            raise UnknownNameError(f"option in {path}", str(key), actions)
        if value is None:
            continue
        action = actions[name]
        try:
            action.default = _from_yaml(action, value)
        except ArgumentTypeError as error:
            raise DissensusError(f"{key} in {path}: {error}") from error
        action.required = False
        if not action.option_strings:
            action.nargs = "*" if action.nargs == "+" else "?"


def _from_yaml(action: Action, value: Any) -> Any:
    if isinstance(action, argparse.BooleanOptionalAction):
        if not isinstance(value, bool):
            raise ArgumentTypeError(f"must be true or false; got {short(value)}")
        return value
    several = value if isinstance(value, list) else [value]
    if (isinstance(value, list) and action.nargs is None) or any(isinstance(each, list | dict) for each in several):
        raise ArgumentTypeError(f"must be one value; got {short(value)}")
    assert callable(action.type)
    converted = [action.type(str(each)) for each in several]
    return converted if action.nargs else converted[0]


def _read_config(path: str) -> dict[Any, Any]:
    from dissensus._core.parsing import read_yaml

    values = read_yaml(Path(path), "--config must be a YAML file")
    if not isinstance(values, dict):
        raise DissensusError(f"--config must map options to values; {path} holds {short(values)}: write lr: 0.01")
    return values


class _Version(Action):
    def __call__(self, *rest: Any) -> NoReturn:
        from dissensus._core.versions import versions

        parts = versions()
        width = max(map(len, parts))
        print(f"dissensus {__version__}", *(f"{name:{width}} {version}" for name, version in parts.items()), sep="\n")
        raise SystemExit(0)


class _Completion(Action):
    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> NoReturn:
        import shtab

        shell = rest[1]
        if shell not in shtab.SUPPORTED_SHELLS:
            raise UnknownNameError("shell", str(shell), shtab.SUPPORTED_SHELLS)
        print(shtab.complete(parser, shell))
        raise SystemExit(0)
