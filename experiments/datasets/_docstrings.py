"""Clients of `pydoc`: the English sentences in the docstrings of installed modules, which are never imported."""

import importlib.metadata
import pathlib
import re
import sysconfig
from collections.abc import Iterable, Iterator, Mapping

from tff_mf.errors import InputTypeError, InputValueError

from ..output import progress as _progress

STDLIB = "stdlib"
# A module with fewer sentences than this does not become a client.
MIN_SENTENCES = 8

_OWN_NAME = "tff-mf"
_MOST_TOKENS = 80
_LEAST_TOKENS = 5
_LEAST_FUNCTION_WORDS = 0.15
# Test code has few docstrings, and protoc repeats the comments of .proto files.
_SKIPPED = re.compile(r"(^|/)(tests?|idle_test|site-packages|dist-packages)/|(^|/)test_|_(tests?|pb2|pb2_grpc)\.py$")
# A regular expression finds docstrings 10 times faster than Python's parser. It also finds other long strings, of which
# few have sentences.
_LONG_STRING = re.compile(r'("""|\'\'\')(.*?)\1', re.DOTALL)
_MARKUP = re.compile(r":[\w:+.-]+:(?=`)|[`*]+|\(\)")
# Blank lines, rules, doctests, declared parameters, bullets, and the ends of sentences.
_BOUNDARY = re.compile(
    r"\n[ \t]*\n|^.*(?: : |>>>|[-=~^]{3}).*$|::$|^[ \t]*[-*] |(?<=[.!?:])(?:[ \t]*\n|\s+(?=[A-Z]))", re.MULTILINE
)
# Code, paths, formulas and tables have other characters too.
_PROSE = re.compile(r"[A-Z][A-Za-z0-9 ,;:()\"'./-]*[.!?:]")
_TOKEN = re.compile(r"e\.g\.|i\.e\.|\w+(?:[.'/-]\w+)*|[^\w\s]")
# Code and lists of names have few of these.
_FUNCTION_WORD = re.compile(
    r"\b(?:the|an?|of|to|in|on|at|by|for|with|from|as|is|are|was|be|been|its?|this|that|these|and|or|but|if|not?|when|"
    r"which|who|what|all|any|each|some|one|only|can|may|must|should|will|would|do|does|has|have|you|your|we)\b"
)


def chosen_packages(names: Iterable[str] | None = None) -> dict[str, importlib.metadata.Distribution | None]:
    """Returns the distributions called `names`, by normalized name in their order; None is the standard library.

    Args:
        names: Names of distributions, spelled in any of the ways pip allows; `stdlib` is the
            standard library. None is the standard library and every distribution but tff-mf.

    Raises:
        InputTypeError: If `names` is not an iterable of strings.
        InputValueError: If a name is not installed here, or none is given.
    """
    installed: dict[str, importlib.metadata.Distribution | None] = {STDLIB: None}
    for distribution in importlib.metadata.distributions():
        # The first one on the path is the one that an import finds.
        installed.setdefault(_normalized(distribution.metadata["Name"] or _OWN_NAME), distribution)
    installed.pop(_OWN_NAME, None)
    if names is None:
        return dict(sorted(installed.items()))
    listed = list(names) if isinstance(names, Iterable) and not isinstance(names, str) else [names]
    if isinstance(names, str) or not all(isinstance(name, str) for name in listed):
        raise InputTypeError(f"packages={names!r} must be a list of names, or None for all that are installed.")
    if not listed:
        raise InputValueError("packages=[] names nothing; leave packages out to use all that is installed.")
    for name in listed:
        if _normalized(name) not in installed:
            raise InputValueError(
                f"packages={name!r} is not installed here; name a distribution that `pip list` shows, "
                f"other than {_OWN_NAME}, or {STDLIB!r} for the standard library."
            )
    return {name: installed[name] for name in sorted(map(_normalized, listed))}


def modules_of(chosen: Mapping[str, importlib.metadata.Distribution | None]) -> dict[str, pathlib.Path]:
    """Returns the files of the modules of packages, by the name of the module, in the order of names."""
    found: dict[str, pathlib.Path] = {}
    for distribution in chosen.values():
        for path, file in _files(distribution):
            names = path.removesuffix(".py").removesuffix("/__init__").split("/")
            # Others are scripts, which cannot be imported: ../../bin/x.py.
            if path.endswith(".py") and not _SKIPPED.search(path) and all(map(str.isidentifier, names)):
                found.setdefault(".".join(names), file)
    return dict(sorted(found.items()))


def clients_of(files: Mapping[str, pathlib.Path], *, progress: bool) -> dict[str, list[str]]:
    """Returns the sentences of the modules that have enough; a sentence belongs to the first module that has it.

    Args:
        files: The file of each module.
        progress: Whether to show a bar on a terminal.
    """
    seen: set[str] = set()
    found = {}
    names = _progress.steps(files, len(files), "pydoc: reading modules") if progress else files
    for name in names:
        try:
            text = files[name].read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        own = dict.fromkeys(
            sentence for _, docstring in _LONG_STRING.findall(text) for sentence in sentences_of(docstring)
        )
        new = [sentence for sentence in own if sentence not in seen]
        if len(new) >= MIN_SENTENCES:
            found[name] = new
            seen.update(new)
    return found


def sentences_of(docstring: str) -> Iterator[str]:
    r"""Yields the tokens of each English sentence, as StackOverflow has them: lower-case, between single spaces.

    Punctuation is a token of its own, apart from apostrophes and hyphens inside a word. Unlike
    there, a dot, a slash or an underscore inside a name or a number belongs to it.

    Example:
        >>> list(sentences_of("Returns the larger of the two.\n\n>>> larger(1, 2)\n2\n\nIt's exact: see `larger.py`."))
        ['returns the larger of the two .', "it's exact : see larger.py ."]
    """
    for piece in _BOUNDARY.split(_MARKUP.sub("", docstring)):
        text = " ".join(piece.split())
        if _PROSE.fullmatch(text):
            tokens = _TOKEN.findall(text.lower())
            held = len(_FUNCTION_WORD.findall(text.lower()))
            if _LEAST_TOKENS <= len(tokens) <= _MOST_TOKENS and held >= _LEAST_FUNCTION_WORDS * len(tokens):
                yield " ".join(tokens)


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def _files(distribution: importlib.metadata.Distribution | None) -> Iterator[tuple[str, pathlib.Path]]:
    """Yields the files of a distribution, each with its path relative to what Python searches."""
    if distribution is None:
        root = pathlib.Path(sysconfig.get_path("stdlib"))
        for path in root.rglob("*.py"):
            yield path.relative_to(root).as_posix(), path
    else:
        for file in distribution.files or ():
            yield file.as_posix(), pathlib.Path(str(distribution.locate_file(file)))
