"""Build the command line, run one command and report its errors.

Each error becomes one message and an exit code.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import typer
from typer.core import TyperCommand

from glmplan.cli.screen import error_words, say, speak_any_language
from glmplan.errors import GlmplanError, Infeasible

__all__ = ["application", "run"]

#: digits of other scripts, which Python accepts in numbers
_ODD_DIGITS = re.compile(r"(?![0-9])\d")
_HELP = "Plan and simulate the serving of large language models: memory, speed, concurrency, SLO attainment, cost."


def application(
    commands: Mapping[str, tuple[str, str]], load: Callable[[str], ModuleType], only: str | None = None
) -> typer.Typer:
    """Return the typer application with one command imported.

    Other commands are listed only. `only` None imports all commands (for the reference).
    """
    app = typer.Typer(
        help=_HELP,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        # inherited by groups and commands
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def root() -> None:
        return None

    for name, (module, line) in commands.items():
        if only is not None and name != only:
            app.command(name, help=line)(_unused)
            continue
        found = load(module)
        if hasattr(found, "app"):
            for one in found.app.registered_commands:
                one.cls = _Hinting
            app.add_typer(found.app, name=name, help=line)
        else:
            app.command(name, cls=_Command, short_help=line)(found.command)
    return app


class _Hinting(TyperCommand):
    """Command that answers an unknown option with the one to take."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse options."""
        given = tuple(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # the class is that of click, or of the copy of click in typer
            option = getattr(error, "option_name", "")
            if hasattr(error, "possibilities"):
                from glmplan.cli.hints import answer_unknown

                known = {name for one in self.params for name in one.opts}
                option, answer = answer_unknown(option, given, known, ctx.command_path.partition(" ")[2])
                error.message = f"No such option: {option}{'. ' * bool(answer)}{answer}"  # type: ignore[attr-defined]
                error.possibilities = []
            raise


class _Command(_Hinting):
    """Command that converts given options only.

    typer otherwise builds a validator for each of forty options.
    """

    def __init__(self, *words: Any, **settings: Any) -> None:
        super().__init__(*words, **settings)
        for one in self.params:
            if one.callback is None:
                one.process_value = partial(_converted, one, one.process_value)  # type: ignore[method-assign]


def _converted(option: Any, convert: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    """Return an option's value; texts and defaults need no validator."""
    several = option.multiple or option.nargs == -1
    if value is None and not option.required:
        return () if several else None
    # typer before 0.29 keeps no descriptor of the type: its options are always converted
    descriptor = getattr(option, "type_descriptor", None)
    text = descriptor is not None and descriptor.annotation is str and isinstance(value, str)
    return value if text or (value is not None and value is option.default) else convert(context, value)


def _unused() -> None:
    raise AssertionError("a command was run without its module")  # the requested command is always imported


def run(arguments: list[str], commands: Mapping[str, tuple[str, str]], load: Callable[[str], ModuleType]) -> None:
    """Run the command line and exit."""
    speak_any_language()
    odd = next((word for word in arguments if not word.isascii() and _ODD_DIGITS.search(word)), None)
    if odd is not None and not os.path.exists(odd):
        print(error_words(f"{odd!r} has digits that are not 0 to 9"), file=sys.stderr)
        raise SystemExit(2)
    if "--version" in arguments:
        from importlib.metadata import version

        print(version("glmplan"))
        raise SystemExit(0)
    asked = next((word for word in arguments if not word.startswith("-")), "")
    if asked in commands and arguments[0] == asked:
        # other commands are needed only for the list and for suggestions after a wrong name
        commands = {asked: commands[asked]}
    app = application(commands, load, only=asked)
    try:
        app(args=arguments, prog_name="glmplan", standalone_mode=True)
    except Infeasible as answer:
        say(answer)
        raise SystemExit(0) from None
    except GlmplanError as error:
        print(error_words(error), file=sys.stderr)
        raise SystemExit(2) from None
    except ValueError as error:
        if "integer string conversion" not in str(error):  # the limit of Python, which no number of ours reaches
            raise
        print(error_words("a number in a file or option has thousands of digits"), file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("glmplan: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:
        # the pipe is closed (`| head`): print nothing and let the interpreter exit quietly
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
