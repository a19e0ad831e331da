"""Commands: functions whose signatures become flags and whose docstrings become help.

    @command("train", "dissensus train digits --out runs/mine", training=Flags(TrainOptions))
    def train(features: str, *, out: str, method: str = "sed-a2d", training: Given) -> None:
        '''Train an ensemble on features.

        Args:
            features: where they are.
            ...
        '''

Parameters before `*` are positional arguments, those after it flags. A parameter with an options class is one flag per
field, and receives the fields that the user set.
"""

from __future__ import annotations

import inspect
import re
import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple, NewType, NoReturn

from dissensus._core.errors import DissensusWarning
from dissensus._core.options import Option, listed
from dissensus._core.terminal import say as say

Given = Mapping[str, Any]  # the options of a class that the user set, by name
Share = NewType("Share", float)  # a flag that takes 5% or 0.05
Duration = NewType("Duration", float)  # a flag that takes 90s, 10m or 1h, in seconds
PartOf = NewType("PartOf", tuple[int, int])  # a flag that takes K/N
Function = Callable[..., None]


class Flags(NamedTuple):
    """An options class as a group of flags: what the help says about the group, and the fields to leave out."""

    options: type[Any]
    note: str = ""
    without: tuple[str, ...] = ()


class Command(NamedTuple):
    """A command: its function, an example for its help, its options classes by parameter, whether it reads results."""

    function: Function
    example: str
    groups: Mapping[str, Flags]
    reads: bool = True

    def parameters(self) -> list[inspect.Parameter]:
        """The parameters that are one argument each."""
        return [p for p in inspect.signature(self.function).parameters.values() if p.name not in self.groups]

    def options(self) -> Iterator[tuple[str, Option]]:
        """The options in groups, each with its group; a name that occurs twice belongs to the first."""
        names = {p.name for p in self.parameters()}
        for group, flags in self.groups.items():
            for option in listed(flags.options):
                if option.name not in names and option.name not in flags.without:
                    names.add(option.name)
                    yield group, option

    def texts(self) -> tuple[str, dict[str, str]]:
        """The description in the docstring, and the text of each parameter under `Args:`."""
        about, _, arguments = (inspect.getdoc(self.function) or "").partition("\nArgs:\n")
        entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", arguments, flags=re.MULTILINE)
        return about.strip(), {name: " ".join(text.split()) for name, text in entries}


HELD = ExitStack()
"""What the running command holds; `main` releases it when the command ends."""

COMMANDS: dict[str, Command] = {}
"""Every command by name, in the order of `dissensus --help`."""


def command(name: str, example: str, *, reads: bool = True, **groups: Flags) -> Callable[[Function], Function]:
    """Add a function to `COMMANDS`.

    Args:
        name: The name of the command.
        example: One for its help.
        reads: Whether it reads features, runs or other results, so that it has the flag --no-verify.
        groups: The options classes of parameters that stand for several flags.
    """

    def add(function: Function) -> Function:
        COMMANDS[name] = Command(function, example, groups, reads)
        return function

    return add


def hold(output: AbstractContextManager[None]) -> None:
    """Hold an output, such as `writing(out)`, until the command ends."""
    HELD.enter_context(output)


def fail(message: str) -> NoReturn:
    """Print one line and exit with code 2."""
    say(f"dissensus: error: {message}")
    raise SystemExit(2)


def show_warnings_in_one_line() -> None:
    """Print our own warnings like errors, without file, line and source; call it within `catch_warnings`."""
    others = warnings.showwarning

    def show(message: Any, category: Any, *place: Any, **keywords: Any) -> None:
        if issubclass(category, DissensusWarning):
            say(f"dissensus: warning: {message}")
        else:
            others(message, category, *place, **keywords)

    warnings.showwarning = show


def uncalibrated(run: str) -> str:
    """The hint about a run without a threshold."""
    return (
        f"{run} is not calibrated, so there are no p-values and no verdicts: dissensus calibrate {shlex.quote(run)} "
        "--id SAMPLES"
    )
