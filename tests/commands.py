"""Commands given to `main` as a shell would give them."""

from __future__ import annotations

from dissensus.cli import main


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def refuse(capsys, *arguments: object) -> str:
    """Run what must be refused; its one line."""
    code, out, err = run(capsys, *arguments)
    assert code == 2, (out, err)
    assert out == ""
    assert err.startswith("dissensus: error: ")
    assert err.count("\n") == 1, err
    return err.removeprefix("dissensus: error: ").strip()
