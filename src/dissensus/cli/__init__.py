"""The command line: a file a verb, whose function's signature is the options and whose docstring is the help.

Results go to stdout or --out, messages and progress to stderr. A user's mistake is one line and exit code 2.
Heavy imports stay inside the verbs, so that --help answers at once.
"""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Sequence

from jsonargparse import ArgumentParser

from dissensus._core.errors import DissensusError
from dissensus.cli import (
    calibrate,
    demo,
    evaluate,
    export,
    extract,
    lists,
    parser,
    predict,
    report,
    run,
    serve,
    study,
    suite,
    train,
)
from dissensus.cli.parser import Verb

VERBS = {
    "demo": Verb(demo.demo, demo.EXAMPLE, demo.PLAIN),
    "run": Verb(run.run, run.EXAMPLE, run.PLAIN),
    "extract": Verb(extract.extract_images, extract.EXAMPLE, extract.PLAIN),
    "train": Verb(train.train, train.EXAMPLE, train.PLAIN),
    "evaluate": Verb(evaluate.evaluate_runs, evaluate.EXAMPLE, evaluate.PLAIN),
    "calibrate": Verb(calibrate.calibrate, calibrate.EXAMPLE, calibrate.PLAIN),
    "predict": Verb(predict.predict, predict.EXAMPLE, predict.PLAIN),
    "export": Verb(export.export, export.EXAMPLE, export.PLAIN),
    "serve": Verb(serve.serve, serve.EXAMPLE, serve.PLAIN),
    "study": Verb(study.study, study.EXAMPLE, study.PLAIN),
    "report": Verb(report.report, report.EXAMPLE, report.PLAIN),
    "suite": Verb(suite.suite, suite.EXAMPLE, suite.PLAIN),
    "list": Verb(lists.list_, lists.EXAMPLE, lists.PLAIN),
}
# What the system may say of a path or a disk that is the user's to mend.
USERS_OWN = {
    errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO,
    errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP,
}  # fmt: skip


def build_parser() -> ArgumentParser:
    """The parser of all verbs."""
    return parser.build(VERBS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    given = [parser.underscored(argument) for argument in (sys.argv[1:] if argv is None else argv)]
    try:
        options = build_parser().parse_args(given)
    except UnicodeDecodeError as error:
        parser.fail(f"--config must be a YAML file in UTF-8; it is not ({error.reason}): save it as UTF-8")
    verb = options.verb
    arguments = options[verb].as_dict()
    arguments.pop("config", None)
    try:
        VERBS[verb].function(**arguments)
    except DissensusError as error:
        parser.fail(str(error))
    except KeyboardInterrupt:
        hint = "; the same command goes on from here" if verb in ("demo", "extract", "run", "study", "train") else ""
        print(f"\ndissensus: stopped{hint}", file=sys.stderr)
        return 130
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        parser.fail("there is too little memory for this: use fewer members, a smaller batch or a smaller tail")
    except OSError as error:
        if error.errno not in USERS_OWN:
            raise
        parser.fail(f"{error.strerror}: {error.filename or 'a file'}; check the path, its rights and the space left")
    return 0
