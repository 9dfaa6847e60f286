"""Commands of bash itself that run no other command."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping

from bashread.conditions import plain
from bashread.filters import FILTERS, filtered
from bashread.state import ExitLeft, LoopLeft, ReturnLeft, Shell
from bashread.values import ASSUMED, DONE, Outcome, Unknown, Word

Builtin = Callable[[Shell, list[Word], int, "Word | None"], Outcome]
"""A runner of a command, its own name included, on a line, with the here-document that is its input."""


def _nothing(shell: Shell, words: list[Word], line: int, document: Word | None) -> Outcome:
    return Outcome(words[0].text != "false")


def _ignored(shell: Shell, words: list[Word], line: int, document: Word | None) -> Outcome:
    return ASSUMED


def _echo(shell: Shell, words: list[Word], line: int, document: Word | None) -> Outcome:
    if shell.captured is None:
        return DONE
    arguments = [word.text for word in words[1:]]
    end = "\n"
    while arguments and re.fullmatch("-[neE]+", arguments[0]):
        option = arguments.pop(0)
        end = "" if "n" in option else end
        if "e" in option and any("\\" in text for text in arguments):
            shell.decided_output = False
    shell.captured.append(" ".join(arguments) + end)
    return DONE


def _cd(shell: Shell, words: list[Word], line: int, document: Word | None) -> Outcome:
    folder, there = shell.value("PWD", line), [word.text for word in words[1:] if word.text != "--"]
    decided = len(there) == 1 and there[0] and not there[0].startswith(("-", "~")) and not shell.unknowns.of(there[0])
    if words[0].text == "cd" and decided and isinstance(folder, str) and not shell.unknowns.of(folder):
        shell.variables["PWD"] = posixpath.normpath(posixpath.join(folder, there[0]))
    else:
        shell.variables["PWD"] = shell.unknowns.mark(Unknown("$PWD", line))
    return ASSUMED


def _pwd(shell: Shell, words: list[Word], line: int, document: Word | None) -> Outcome:
    folder = shell.value("PWD", line)
    if shell.captured is not None:
        shell.captured.append(f"{folder}\n")
        shell.decided_output &= isinstance(folder, str) and not shell.unknowns.of(folder)
    return DONE


def _part_of_path(shell: Shell, words: list[Word], line: int, document: Word | None) -> Outcome:
    """`basename PATH [SUFFIX]` and `dirname PATH` (coreutils 9.4), which ask no disk."""
    texts = [word.text for place, word in enumerate(words) if place != 1 or word.text != "--"]
    plain_words = all(text and not text.startswith("-") and not shell.unknowns.of(text) for text in texts[1:])
    if shell.captured is None or not plain_words or not 2 <= len(texts) <= (3 if texts[0] == "basename" else 2):
        shell.record(words, line)
        return ASSUMED
    path = texts[1].rstrip("/")
    folder, slash, name = path.rpartition("/")
    if texts[0] == "basename":
        name = name or "/"
        suffix = texts[2] if texts[2:] and name != texts[2] else ""
        printed = name.removesuffix(suffix)
    else:
        printed = folder.rstrip("/") or ("/" if slash or not path else ".")
    shell.captured.append(f"{printed}\n")
    return DONE


def _cat(shell: Shell, words: list[Word], line: int, document: Word | None) -> Outcome:
    if shell.captured is not None and document is not None and len(words) == 1:
        shell.captured.append(document.text)
        return DONE
    shell.record(words, line, document)
    return ASSUMED


def _printf(shell: Shell, words: list[Word], line: int, document: Word | None) -> Outcome:
    if len(words) > 2 and words[1].text == "-v":
        shell.variables[words[2].text] = shell.unknowns.mark(Unknown(f"${words[2].text}", line))
    shell.decided_output = False
    return DONE


def _seq(shell: Shell, words: list[Word], line: int, document: Word | None) -> Outcome:
    numbers = [word.text for word in words[1:]]
    whole = all(number.removeprefix("-").isdigit() and len(number) < 10 for number in numbers)
    if shell.captured is None or not whole or not 1 <= len(numbers) <= 3:
        shell.record(words, line)
        return ASSUMED
    first, step, last = {1: ("1", "1", numbers[0]), 2: (numbers[0], "1", numbers[-1])}.get(len(numbers), numbers)
    stride = int(step) or 1
    counted = range(int(first), int(last) + (1 if stride > 0 else -1), stride)
    shell.spend(len(counted) * 4)
    shell.captured.extend(f"{number}\n" for number in counted)
    return DONE


def _test(shell: Shell, words: list[Word], line: int, document: Word | None) -> Outcome:
    texts = [word.text for word in words[1:]]
    if words[0].text == "[" and texts:
        texts.pop()
    return plain(texts, line, shell)


def _let(shell: Shell, words: list[Word], line: int, document: Word | None) -> Outcome:
    outcome = DONE
    for word in words[1:]:
        outcome = shell.nonzero(word.text, line)
    return outcome


def _leave(shell: Shell, words: list[Word], line: int, document: Word | None) -> Outcome:
    name, said = words[0].text, words[1].text if len(words) > 1 else ""
    if name in ("exit", "return"):
        status = Outcome(int(said[:3]) == 0) if said.isascii() and said.isdigit() else ASSUMED
        if unknown := shell.unknowns.of(said):
            status = Outcome(None, unknown)
        raise ExitLeft(line, status) if name == "exit" else ReturnLeft(status)
    levels = said or "1"
    raise LoopLeft(name, int(levels[:3]) if levels.isascii() and levels.isdigit() else 1)


def _shift(shell: Shell, words: list[Word], line: int, document: Word | None) -> Outcome:
    count = words[1].text if len(words) > 1 else "1"
    if shell.positional and (shell.unknowns.of(count) or any(word.open for word in shell.positional)):
        shell.positional = [Word(shell.unknowns.mark(Unknown("$@", line)), line, open=True)]
    elif count.isascii() and count.isdigit() and int(count[:6]) <= len(shell.positional):
        shell.positional = shell.positional[int(count[:6]) :]
    return DONE


def _set(shell: Shell, words: list[Word], line: int, document: Word | None) -> Outcome:
    texts = [word.text for word in words]
    if "--" in texts:
        shell.positional = words[texts.index("--") + 1 :]
    elif len(words) > 1 and not texts[1].startswith(("-", "+")):
        shell.positional = words[1:]
    return DONE


def _read(shell: Shell, words: list[Word], line: int, document: Word | None) -> Outcome:
    texts, cuts = [word.text for word in words], shell.prefix.get("IFS", "")
    array = re.fullmatch(r"(?:read )?(?:-r )?-r?a (\w+)", " ".join(texts))
    if array and document is not None and len(cuts) == 1 and cuts.strip() and not shell.unknowns.of(document.text):
        parts = document.text.partition("\n")[0].split(cuts)  # IFS=, read -ra NAME <<< "$LIST"
        parts = parts[: len(parts) - (not parts[-1])]
        shell.variables[array[1]] = {place: Word(part, line) for place, part in enumerate(parts)}
        return DONE
    for name in (*(word.text for word in words[1:]), "REPLY", "MAPFILE", "OPTARG", "OPTIND"):
        if name.isidentifier():
            shell.variables[name] = shell.unknowns.mark(Unknown(f"${name}", line))
    return ASSUMED


def _getopts(shell: Shell, words: list[Word], line: int, document: Word | None) -> Outcome:
    """`getopts SPECIFICATION NAME [WORDS]`, each option in its own word; where a word is not known, all is open."""
    place = shell.variables.get("OPTIND", "1")
    if len(words) < 3 or not isinstance(place, str) or not place.isdigit():
        return _read(shell, words, line, document)
    specification, name, given = words[1].text, words[2].text, words[3:] or shell.positional
    rest = given[int(place) - 1 :]
    option = rest[0].text if rest else ""
    flag, takes = option[1:2], f"{option[1:2]}:" in specification.removeprefix(":")
    if any(word.open or shell.unknowns.of(word.text) for word in rest[:1]) or (
        takes and any(w.open for w in rest[1:2])
    ):
        return _read(shell, words, line, document)
    known = flag != ":" and flag in specification
    if known and not takes and option[2:] and option != "--":  # several flags in a word
        return _read(shell, words, line, document)
    shell.variables.pop("OPTARG", None)
    if option[:1] != "-" or option in ("-", "--"):
        shell.assign(name, "?", line)
        shell.assign("OPTIND", str(int(place) + (option == "--")), line)
        return Outcome(False)
    value = option[2:] or (rest[1].text if rest[1:] else None)
    lacks = known and takes and value is None
    said = (":" if lacks else "?") if specification.startswith(":") else "?"
    shell.assign(name, flag if known and not lacks else said, line)
    if not known or lacks:
        if specification.startswith(":"):
            shell.assign("OPTARG", flag, line)
    elif takes:
        shell.assign("OPTARG", str(value), line)
    shell.assign("OPTIND", str(int(place) + (2 if takes and not lacks and not option[2:] else 1)), line)
    return DONE


def _source(shell: Shell, words: list[Word], line: int, document: Word | None) -> Outcome:
    named = words[1].text if len(words) > 1 else ""
    text = None if not named or shell.unknowns.of(named) else shell.beside(named)
    if text is not None:
        from bashread.sourced import followed

        return followed(shell, named, text, words[2:], line)
    shell.decided_output = False
    shown = shell.unknowns.shown(" ".join(word.text for word in words[1:2]))
    shell.remark("source", line, f"{words[0].text} {shown} is not followed")
    return ASSUMED


BUILTINS: Mapping[str, Builtin] = {
    **dict.fromkeys(("true", ":", "false"), _nothing),
    **dict.fromkeys(("cd", "pushd", "popd"), _cd),
    **dict.fromkeys(("trap", "wait", "sleep", "umask", "ulimit", "shopt"), _ignored),
    **dict.fromkeys(("exit", "return", "break", "continue"), _leave),
    **dict.fromkeys(("read", "mapfile", "readarray"), _read),
    **dict.fromkeys(("test", "["), _test),
    **dict.fromkeys(("source", "."), _source),
    **dict.fromkeys(("basename", "dirname"), _part_of_path),
    **dict.fromkeys(FILTERS, filtered),
    "cat": _cat,
    "echo": _echo,
    "getopts": _getopts,
    "let": _let,
    "printf": _printf,
    "pwd": _pwd,
    "seq": _seq,
    "set": _set,
    "shift": _shift,
}
