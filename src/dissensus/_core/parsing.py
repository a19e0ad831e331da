"""JSON and YAML that others wrote, within limits: size, depth, and what the aliases of YAML stand for.

A file of a few hundred bytes can stand for billions of values, or be nested deeply enough to end the interpreter.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from dissensus._core.errors import DissensusError

JSON_BYTES = 2**20  # of JSON beside an image
YAML_BYTES = 2**18
YAML_DEPTH = 50
YAML_VALUES = 100_000  # with every alias written out


def json_value(data: bytes) -> Any:
    """Return the value of a small JSON document.

    Raises:
        ValueError: If it is not JSON, too large, or too deeply nested.
    """
    if len(data) > JSON_BYTES:
        raise ValueError(f"{len(data):,} bytes, more than {JSON_BYTES:,}")
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("too deeply nested") from error


def read_yaml(path: Path, kind: str) -> Any:
    """Return the value of a YAML file.

    Args:
        path: The file, or a pipe such as <(echo lr: 0.01).
        kind: What is expected, for the message about a file that cannot be read: "a suite is a name or a YAML file".

    Raises:
        DissensusError: If it cannot be read, is not YAML, repeats a key, or exceeds a limit.
    """
    try:
        with path.open("rb") as file:
            data = file.read(YAML_BYTES + 1)
        if len(data) > YAML_BYTES:
            raise DissensusError(f"{path} must be a YAML file of up to {YAML_BYTES:,} bytes; it has more: shorten it")
        return yaml.load(data.decode("utf-8-sig"), _Loader)
    except OSError as error:
        raise DissensusError(f"{kind}; {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DissensusError(f"{path} must be YAML in UTF-8; it is not ({error.reason}): save it as UTF-8") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f"line {mark.line + 1}: "
        reason = " ".join(str(getattr(error, "problem", None) or error).split())
        raise DissensusError(f"{path} must be YAML; it is not ({line}{reason[:160]}): correct it") from error
    except DissensusError:
        raise
    except ValueError as error:  # an impossible date, such as 2024-13-45
        raise DissensusError(f"{path} must be YAML; it is not ({error}): correct it") from error


class _Loader(yaml.SafeLoader):
    """Safe YAML within the limits, that refuses a repeated key, of which PyYAML would drop the first."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._level = 0
        self._extents: dict[yaml.Node, tuple[int, int]] = {}  # values and depth of each node, aliases written out

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node, counting what it stands for."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        start, alias = event.start_mark, isinstance(event, yaml.AliasEvent)
        _check(alias or event.tag is None, "values have no tags", start)  # PyYAML raises anything for a wrong one
        self._level += 1
        _check(self._level <= YAML_DEPTH, f"nested more than {YAML_DEPTH} deep", start)
        node = super().compose_node(parent, index)
        self._level -= 1
        assert node is not None
        _check(not alias or node in self._extents, "an alias stands for what it is in", start)
        if not alias:
            self._extents[node] = values, depth = self._extent(node)
            _check(values <= YAML_VALUES, f"more than {YAML_VALUES:,} values, with every alias written out", start)
            _check(depth <= YAML_DEPTH, f"nested more than {YAML_DEPTH} deep", start)
        return node

    def _extent(self, node: yaml.Node) -> tuple[int, int]:
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            children = [each for pair in node.value for each in pair]
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        extents = [self._extents[child] for child in children]
        return 1 + sum(values for values, _ in extents), 1 + max((depth for _, depth in extents), default=0)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping after checking its keys."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                _check(key.value not in seen, f"{key.value!r} is given twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        """Construct an integer of at most 64 bits; hexadecimal ones have no limit in Python."""
        value = self.construct_yaml_int(node) if len(node.value) < 100 else 2**64
        _check(abs(value) < 2**63, "an integer of more than 64 bits", node.start_mark)
        return value


def _check(holds: bool, problem: str, mark: Any) -> None:
    if not holds:
        raise yaml.constructor.ConstructorError(None, None, problem, mark)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_integer)
# 1e-3 is a number here; PyYAML wants 1.0e-3.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)
