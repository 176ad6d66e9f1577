"""What MkDocs does for this site besides pages of docs/: README as start page, notebooks, and the reference.

Runs in the environment of `make docs`, without TensorFlow: griffe reads the sources without importing them.
"""

import csv
import functools
import itertools
import json
import pathlib
import re
import shutil

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation

ROOT = pathlib.Path(__file__).parents[2]
LAYERS = {"tff_mf": "tff_mf", "aggregators": "tff_mf/aggregators", "experiments": "tff_mf/experiments"}
SOURCES = ROOT / "build" / "site-sources"
# Pages outside of docs/, and their names on the site.
OUTSIDE = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
# Tables of docs/results that are pages of the site, too, and their titles.
TABLES = {"frontier.csv": "Error over memory", "tables.csv": "The papers' tables and figures"}
# What a page of the reference has beside the public names of its module.
ALSO = {
    # Functions in modules of the same name.
    "tff_mf": ["tff_mf.accounting.epsilon.epsilon", "tff_mf.accounting.epsilon.guarantee", "tff_mf.planning.plan.plan"],
    "tff_mf.conformance": ["tff_mf.conformance.check.check"],
    "tff_mf.noise.numpy": ["tff_mf.noise._keyed.KeyedStream"],
    # It loads them when it is asked for them.
    "tff_mf.aggregators": [
        "tff_mf.experiments.guard.private_training.PrivateTraining",
        *(f"tff_mf.experiments.guard.fed_avg.{name}" for name in ("private_fed_avg", "private_fed_sgd")),
    ],
    "tff_mf.experiments": [
        f"tff_mf.experiments.{name}"
        for name in (
            *("guard.open_guard", "guard.RunGuard", "guard.RefusedCohortError"),
            *("reports.write", "reports.read", "reports.check"),
        )
    ],
    "tff_mf.experiments.flower": [
        f"tff_mf.experiments.flower.{name}"
        for name in (
            *("cohorts.by_public_key", "cohorts.by_partition"),
            *("mods.integers_mod", "clipping.as_integers"),
        )
    ],
}
_EXAMPLE = re.compile(r"^( +)Example:\n((?:\1    .*\n)(?:\1    .*\n|\n(?=\1    ))*)", re.M)
_GUARANTEE = re.compile(r"^( +)Formal guarantee:\n(?:\1    .*\n)+", re.M)
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
# Code between backticks, after what has no links in it: blocks, headings and links.
_CODE = re.compile(r"^```.*?^```|^(?:#|    ).*?$|\[[^]]*\]\([^)]*\)|`(?P<code>[^`\n]+)`", re.M | re.S)


@event_priority(100)
def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Copies the layers to where they are imported from: griffe knows packages by their folders.

    Before mkdocstrings, which leaves out a search path that does not exist yet.
    """
    shutil.rmtree(SOURCES, ignore_errors=True)
    for folder, package in LAYERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            copy = SOURCES / package / path.relative_to(ROOT / folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            text = _EXAMPLE.sub(_examples, path.read_text(encoding="utf-8"))
            copy.write_text(_GUARANTEE.sub(_paragraphs, text), encoding="utf-8")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not files of docs/."""
    for name, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=from_root((ROOT / name).read_text(encoding="utf-8"))))
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        page = notebook.src_uri.removesuffix(".ipynb") + ".md"
        files.append(File.generated(config, page, content=notebook_page(pathlib.Path(notebook.abs_src_path))))
    for name in TABLES:
        path = ROOT / "docs" / "results" / name
        files.append(File.generated(config, f"results/{path.stem}.md", content=table_page(path)))
    for module in _modules():
        files.append(File.generated(config, f"reference/{module}.md", content=reference_page(module)))
    return files


def on_page_markdown(markdown: str, page, **_) -> str:
    """Links that lead from docs/ to pages outside of it, and to tables, lead to their pages on the site."""
    depth = page.file.src_uri.count("/")
    for name in TABLES:
        markdown = markdown.replace(f"results/{name})", f"results/{pathlib.Path(name).stem}.md)")
    markdown = _LINK.sub(lambda link: _moved(link, depth), markdown)
    return markdown if page.file.src_uri.startswith("reference/") else _linked_names(markdown)


def _linked_names(markdown: str) -> str:
    """Returns a page on which the first use of a public name leads to the reference."""
    linked = set()

    def link(found: re.Match[str]) -> str:
        name = re.match(r"[\w.]*", found["code"] or "")[0]
        path = _public_names().get(name)
        if path is None or path in linked:
            return found.group()
        linked.add(path)
        return f"[{found.group()}][{path}]"

    return _CODE.sub(link, markdown)


@functools.cache
def _public_names() -> dict[str, str]:
    """Returns the path of every name of the reference, by all that a page may call it."""
    paths, shared = {}, set()
    for module in _modules():
        for member in _members(module):
            words = [*module.split("."), member.name]
            for start in range(len(words)):
                name = ".".join(words[start:])
                # A word alone is a name of ours only if it looks like one.
                if "." in name or re.search("_|[A-Z].*[a-z]", name):
                    shared |= {name} if paths.setdefault(name, member.path) != member.path else set()
    return {name: path for name, path in paths.items() if name not in shared}


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:
    """Keeps the order of the pages for llms.txt, which needs their text."""
    config.extra["pages"] = nav.pages


def on_env(env: object, config: MkDocsConfig, files: Files) -> None:
    """Makes llms.txt: README's first paragraph, and each page with its title and the question that it answers."""
    pages = [page for page in config.extra.pop("pages") if not page.url.startswith("reference/")]
    start, *others = pages
    lines = [f"# {config.site_name}", "", f"> {_first_paragraph(start.markdown)}"]
    for section, members in itertools.groupby(others, lambda page: page.ancestors[-1].title):
        lines += ["", f"## {section}", ""]
        lines += [f"- [{page.title}]({page.url}): {_question(page.markdown)}" for page in members]
    config.extra["llms"] = "\n".join(lines) + "\n"


def on_post_build(config: MkDocsConfig) -> None:
    """Writes llms.txt; removes the page for missing addresses, which needs a server, and what loads from elsewhere."""
    (pathlib.Path(config.site_dir) / "llms.txt").write_text(config.extra["llms"], encoding="utf-8")
    (pathlib.Path(config.site_dir) / "404.html").unlink()
    for script in (pathlib.Path(config.site_dir) / "assets" / "javascripts").glob("bundle*.js*"):
        if script.suffix == ".map":
            script.unlink()
        else:
            text = script.read_text(encoding="utf-8")
            script.write_text(re.sub(r"https://unpkg\.com/[\w@./-]+", "", text), encoding="utf-8")


def _first_paragraph(markdown: str) -> str:
    """Returns the first paragraph below a page's title, as plain text in one line."""
    paragraph = next(part for part in markdown.split("\n\n")[1:] if part[:1].isalpha())
    return re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", " ".join(paragraph.split())).replace("**", "")


def _question(markdown: str) -> str:
    """Returns the first sentence of a page, which is its question."""
    return re.split(r"(?<=[.?])\s", _first_paragraph(markdown), maxsplit=1)[0]


def _examples(section: re.Match[str]) -> str:
    """A section of the name that griffe reads prompts in; it takes all else in it for text."""
    indent, body = section.groups()
    if ">>>" not in body:
        body = f"{indent}    ```python\n{body}{indent}    ```\n"
    return f"{indent}Examples:\n{body}"


def _paragraphs(section: re.Match[str]) -> str:
    """Each item of a guarantee, such as its adjacency, begins a paragraph."""
    return re.sub(r"(?<!guarantee:)(?=\n +[A-Z][a-z]+: )", "\n", section.group())


def from_root(text: str) -> str:
    """Returns a page of the checkout's root with the links of the site."""

    def moved(link: re.Match[str]) -> str:
        start, path, anchor, end = link.groups()
        if "://" in path:
            return link.group()
        path = OUTSIDE.get(path, path.removeprefix("docs/"))
        return f"{start}{re.sub('ipynb$', 'md', path)}{anchor or ''}{end}"

    return _LINK.sub(moved, text)


def _moved(link: re.Match[str], depth: int) -> str:
    start, path, anchor, end = link.groups()
    up = "../" * (depth + 1)
    page = OUTSIDE.get(path.removeprefix(up)) if path.startswith(up) else None
    return f"{start}{'../' * depth}{page}{anchor or ''}{end}" if page else link.group()


def notebook_page(path: pathlib.Path) -> str:
    """Returns a notebook with its stored output as a page."""
    parts = [f"[This page as a notebook]({path.name}){{ download }}"]
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(re.sub(r"(\]\([\w-]+)\.ipynb\)", r"\1.md)", source))  # Another notebook is a page here, too.
        else:
            parts.append(f"```python\n{source}\n```")
        printed = "".join("".join(output["text"]) for output in cell.get("outputs", []))
        if printed:
            parts.append(f"```{{ .text .notebook-output .no-copy }}\n{printed.rstrip()}\n```")
    title, *rest = parts[1].split("\n\n", 1)
    return "\n\n".join([title, parts[0], *rest, *parts[2:]])


def table_page(path: pathlib.Path) -> str:
    """Returns a file of values, separated by commas, as a page."""
    with path.open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    lines = [f"| {' | '.join(cell.replace('_', ' ') for cell in row)} |" for row in (head, ["---"] * len(head))]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    title = f"# {TABLES[path.name]}\n\nThe rows of [{path.name}]({path.name}){{ download }}."
    return title + "\n\n" + "\n".join(lines) + "\n"


def reference_page(module: str) -> str:
    """Returns the page of a module's public names: a table with their first sentences, and all of their docstrings.

    Raises:
        PluginError: If a name has no docstring.
    """
    found = _members(module)
    bare = [each.path for each in found if not each.has_docstring]
    if bare:
        raise PluginError(f"{module}: without a docstring: {bare}")
    rows = [f"| [`{each.name}`][{each.path}] | {_first_sentence(each.docstring.value)} |" for each in found]
    title = f"# `{module}`\n\nGenerated from the docstrings."
    return "\n\n".join(
        [title, "\n".join(["| name | what it is |", "|---|---|", *rows]), *(f"::: {each.path}" for each in found)]
    )


def _first_sentence(docstring: str) -> str:
    sentence = re.split(r"(?<=\.)\s", " ".join(docstring.split("\n\n")[0].split()), maxsplit=1)[0]
    return sentence.replace("|", r"\|")


def _modules() -> list[str]:
    return re.findall(r" reference/(\S+)\.md$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)


def _members(module: str):
    """Returns what a page of the reference has."""
    package = _package()[module.removeprefix("tff_mf.")] if "." in module else _package()
    public = [member for member in package.members.values() if _is_public(member, package)]
    return [*map(_target, public), *(_package()[name.removeprefix("tff_mf.")] for name in ALSO.get(module, []))]


@functools.cache
def _package():
    return griffe.load("tff_mf", search_paths=[SOURCES], resolve_aliases=True, try_relative_path=False)


def _target(member):
    return member.final_target if member.is_alias else member


def _is_public(member, package) -> bool:
    path = member.target_path if member.is_alias else member.path
    if member.name.startswith("_") or not path.startswith(f"{package.path}."):
        return False
    found = _target(member)
    return found.is_class or found.is_function
