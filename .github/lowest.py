"""Print the lowest version of every dependency that pyproject.toml allows, as constraints for pip.

python .github/lowest.py > lowest.txt
pip install --constraint lowest.txt --editable '.[dev]'
"""

import re
import tomllib
from pathlib import Path

# Required by moto, which does not bound them: their newest versions need a later pydantic and PyYAML than ours do.
OF_MOTO = ("aws-sam-translator==1.97.0", "cfn-lint==1.35.0")


def lowest(pyproject: Path) -> list[str]:
    """Return `name==version` for each requirement with a lower bound of the package and its extras, and `OF_MOTO`."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    requirements = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    bounds = (re.match(r"([A-Za-z0-9._-]+)(?:\[.*?\])?>=([0-9.]+)", each) for each in requirements)
    return sorted({f"{bound[1]}=={bound[2]}" for bound in bounds if bound} | {*OF_MOTO})


if __name__ == "__main__":
    print("\n".join(lowest(Path(__file__).parents[1] / "pyproject.toml")))
