"""The parser behind the command line: jsonargparse, made to speak of flags and values."""

from __future__ import annotations

import difflib
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from jsonargparse import ActionYesNo, ArgumentParser, set_parsing_settings

from dissensus import __version__
from dissensus._core.errors import DissensusError, UnknownNameError

Arguments = Mapping[str, Mapping[str, Any]]  # name -> how to parse it


class Verb(NamedTuple):
    """A command: what it runs, an example for its help, the arguments without a flag or with several values."""

    function: Callable[..., None]
    example: str
    plain: Arguments


class Parser(ArgumentParser):
    """jsonargparse, with mistakes told in one line."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print one line and exit with code 2."""
        fail(f"{self._plainly(' '.join(message.split()))} (see: {self.prog.replace(' [options]', '')} --help)")

    def _plainly(self, text: str) -> str:
        """jsonargparse speaks of Python types and parser keys; a user knows flags and values."""
        if choice := re.match(r"argument (\w+): invalid choice: '(.*)' \(choose from (.*)\)$", text):
            return _unknown("command" if choice[1] == "verb" else "list", choice[2], choice[3])
        if choice := re.match(r'Parser key "([^"]+)": Expected a typing.Literal\[(.*?)\].*Got value: (.*?)\.?$', text):
            return _unknown(f"--{choice[1].replace('_', '-')}", choice[3], choice[2])
        if wrong := re.match(r'Parser key "([^"]+)": .*(?:Given value|Got value): (.*?)\.?$', text):
            return f"--{wrong[1].replace('_', '-')} cannot be {wrong[2]!r}"
        if missing := re.match(r"the following arguments are required: (.*)$", text):
            return f"required, but not given: {re.sub(r'[a-z]+[.]', '', missing[1])}"
        if unknown := re.match(r"unrecognized arguments: (--\w+)", text):
            near = difflib.get_close_matches(unknown[1], self._option_string_actions, n=1)
            return text + (f"; did you mean {near[0].replace('_', '-')}?" if near else "")
        return text


def _unknown(kind: str, name: str, choices: str) -> str:
    """Suggest the nearest of quoted choices, separated by commas."""
    return str(UnknownNameError(kind, name, re.findall(r"'([^']*)'", choices)))


def build(verbs: Mapping[str, Verb]) -> ArgumentParser:
    """A parser with one command a verb.

    The signature of a verb's function gives its options and the docstring their help, but for those in `plain`.
    """
    set_parsing_settings(add_print_completion_argument=True)
    parser = Parser(
        prog="dissensus",
        allow_abbrev=False,
        version=__version__,
        description="Diverse ensembles on frozen backbones: better out of distribution, and aware of it.",
        epilog="Start with: dissensus demo. Shell completion: --print_completion=shtab-bash (or -zsh, -fish).",
    )
    commands = parser.add_subcommands(required=True, dest="verb")
    for name, (function, example, plain) in verbs.items():
        about = (function.__doc__ or "").split("Args:")[0].strip()
        verb = Parser(allow_abbrev=False, description=about, epilog=f"Example: {example}")
        verb.add_argument("--config", action="config", help="a YAML file with these options; flags override it")
        for argument, options in plain.items():
            verb.add_argument(argument, **options)
        switches = _switches(function)
        for switch, (default, text) in switches.items():
            verb.add_argument(f"--{switch}", action=ActionYesNo(no_prefix="no_"), default=default, help=text)
        skipped: set[str | int] = {key.lstrip("-") for key in [*plain, *switches]}
        verb.add_function_arguments(function, as_group=False, skip=skipped)
        commands.add_subcommand(name, verb, help=about.split("\n")[0])
    return parser


def _switches(function: Callable[..., None]) -> dict[str, tuple[bool, str]]:
    """Yes-or-no parameters with their defaults and help: --resume and --no-resume, without a value."""
    texts = dict(re.findall(r"^ +(\w+): (.+)$", function.__doc__ or "", flags=re.MULTILINE))
    parameters = inspect.signature(function).parameters.values()
    return {p.name: (p.default, texts[p.name]) for p in parameters if isinstance(p.default, bool)}


def underscored(argument: str) -> str:
    """--batch-size=3 is --batch_size=3: people write flags either way."""
    flag, equals, value = argument.partition("=")
    return flag[:2] + flag[2:].replace("-", "_") + equals + value if flag.startswith("--") else argument


def fail(message: str) -> NoReturn:
    """Print one line and exit with code 2."""
    print(f"dissensus: error: {message}", file=sys.stderr)
    raise SystemExit(2)


def say(message: str) -> None:
    """Print one line beside the results, which have stdout to themselves."""
    print(message, file=sys.stderr)


def uncalibrated(run: str) -> str:
    """What to say of a run that has scores but no threshold, and how to mend it."""
    return (
        f"{run} is not calibrated, so there are no p-values and no verdicts: dissensus calibrate {shlex.quote(run)} "
        "--id SAMPLES"
    )


def share(flag: str, text: str) -> float:
    """A share such as 1% or 0.01 as a number within 0..1."""
    try:
        value = float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise DissensusError(f"{flag} must be a share such as 1% or 0.01; got {text}")
    return value
