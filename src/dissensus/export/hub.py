"""Export a detector for the Hugging Face hub: a folder, a repository, or both.

`Detector.from_pretrained` reads it back; `detection.pretrained` documents the files.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from dissensus._core.errors import DissensusError
from dissensus.detection import pretrained
from dissensus.detection.detector import Detector
from dissensus.export.targets import Written, register
from dissensus.training.run import Run


@register("hub")
def to_hub(
    run: Run,
    out: Path | None,
    *,
    push: str | None = None,
    private: bool | None = None,
    branch: str | None = None,
    license: str | None = None,
) -> Written:
    """A folder for the Hugging Face hub: all that Detector.from_pretrained needs, with a model card."""
    if push is None and (private or branch):
        raise DissensusError("--private and --branch are of what is pushed; got no --push: add --push OWNER/NAME")
    detector = Detector.load(run.folder)
    repo_id, usage, code = f"OWNER/{'NAME' if out is None else out.name}", "", ""
    if push is not None:
        commit = pretrained.push(detector, push, out=out, private=private, branch=branch, license=license)
        repo_id = commit.repo_url.repo_id
        at = "" if branch is None else f", revision={branch!r}"
        usage, code = f"pushed to {commit}", f"detector = Detector.from_pretrained({repo_id!r}{at})"
    elif out is not None:
        pretrained.write(detector, out, repo_id, license=license)
        named = "" if license is not None else "name its license in README.md, then: "
        usage = f"{named}hf upload OWNER/NAME {shlex.quote(str(out))}"
    return Written(out, usage, code, uncalibrated=detector.threshold is None)
