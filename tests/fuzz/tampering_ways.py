"""All ways to tamper with a bundle."""

import tampering_graphs
import tampering_policies
from tampering import (
    Change,
    Way,
    annotated,
    asked,
    edited,
    exchanged,
    manifested,
    placed,
    run_field,
    sparse,
    taken,
    together,
    written,
)
from tampering_folders import FOLDERS, RUNNER, RUNNERS
from tampering_statements import ANOTHER_RUN, POLICIES, STATEMENTS, TASKS

import tff_mf
from tff_mf import grids

_OTHER = ("other",)
_INSECURE = ("insecure",)
_GRAPHS = ("server", "device", "forms")
_GRID = grids.description(tff_mf.Grid(bits=14, max_clients=1000))
_STATED = ("run.json", "configuration.toml", "planned.json", "planned.md", "device-policy.json")


def _way(name: str, change: Change, **more) -> Way:
    return Way(name=name, change=change, **more)


def _taken(name: str, *files: str, of: str = "other") -> Way:
    return Way(name=name, change=taken(*files, of=of), needs=(of,))


def _resized(change):
    """Changes the size of the runner in the manifest."""
    return lambda manifest: manifest["files"][RUNNER].update(bytes=change(manifest["files"][RUNNER]["bytes"]))


GRAPHS_OF_OTHERS = (
    _taken("update with a quarter of the noise", "server/update"),
    _taken("form of update with a quarter of the noise", "forms/map_reduce/update.pb"),
    _taken("form of the server's result with less noise", "forms/distribute_aggregate/server_result.pb"),
    _taken("form of the client's work with a larger norm", "forms/distribute_aggregate/client_work.pb"),
    _taken("another initial model", "server/initial.safetensors"),
    _taken("initialize of another run", "server/initialize"),
    _taken("tokenizer of other words", "device/tokenize"),
    _taken("other words, the tokenizer as it was", "vocabulary.json"),
    _taken("all graphs of a run with less noise", *_GRAPHS),
    _taken("everything of a run with less noise, but its statement", *_GRAPHS, "vocabulary.json", "configuration.toml"),
    _taken("update with a constant key", "server/update", of="insecure"),
    _taken("all graphs with constant keys", *_GRAPHS, of="insecure"),
    _taken("report of a run with more noise", "planned.json", "planned.md"),
    _way(
        "update that is said to be made with another TensorFlow",
        together(
            taken("server/update"),
            edited("run.json", lambda run: run["versions"].update(tensorflow="2.13.0")),
            manifested(lambda manifest: manifest["versions"].update(tensorflow="2.13.0")),
        ),
        needs=_OTHER,
        reported=True,
    ),
    _way(
        "another run as a whole",
        taken(*_GRAPHS, *_STATED, "vocabulary.json"),
        needs=_OTHER,
        digest_only=ANOTHER_RUN,
    ),
    _way(
        "other words, with their tokenizer",
        taken("vocabulary.json", "device/tokenize"),
        needs=_OTHER,
        digest_only="nothing says which words were meant",
    ),
)
FILES_EXCHANGED = (
    _way("prepare in the place of report", exchanged("server/prepare", "server/report")),
    _way("zero in the place of accumulate", exchanged("server/zero", "server/accumulate")),
    _way("forms exchanged", exchanged("forms/map_reduce/prepare.pb", "forms/map_reduce/report.pb")),
    _way("a field behind a graph", written("server/update/saved_model.pb", lambda old: old + b"\xf8\x7f\x01")),
    _way("a field behind a form", written("forms/map_reduce/update.pb", lambda old: old + b"\xf8\x7f\x01")),
    _way("variables", written("device/work/variables/variables.index", lambda old: old + b"\0")),
    _way("bytes behind the Lite model", written("device/work.tflite", lambda old: old + b"\0" * 16)),
    _way("a Lite model that is none", written("device/work.tflite", lambda old: b"TFL3" * 100)),
    _way("a word in the metadata of the initial model", written("server/initial.safetensors", annotated)),
    _way("blanks in the vocabulary", written("vocabulary.json", lambda old: old + b" ")),
    _way("a comment in the settings", written("configuration.toml", lambda old: b"# audited\n" + old)),
    _way("blanks in the report", written("planned.json", lambda old: old + b" ")),
)
MANIFESTS = (
    _way("types of update", manifested(lambda m: m["stages"]["update"]["inputs"].popitem()), listed=False),
    _way("bytes of a graph", manifested(lambda m: m["stages"]["update"].update(graph_bytes=1)), listed=False),
    _way("type of the process", manifested(lambda m: m.update(process="( -> audited)")), listed=False),
    _way("type of a form", manifested(lambda m: m["forms"].update({"map_reduce/work": "x"})), listed=False),
    _way("batch size", manifested(lambda m: m["local_data"].update(batch_size=3)), listed=False),
    _way("all examples", manifested(lambda m: m["local_data"].update(max_examples=None)), listed=False),
    _way("a manifest that says TEST ONLY", manifested(lambda m: m.update(test_only=True)), listed=False),
    _way("why there is no Lite model", manifested(lambda m: m["lite"].update(reason="audited")), listed=False),
    _way("another Python", manifested(lambda m: m["versions"].update(python="3.12.0")), listed=False),
    _way("a version that is a sentence", manifested(lambda m: m["versions"].update(python="ε ≤ 0.1")), listed=False),
    _way(
        "no Lite model",
        together(
            manifested(lambda m: m["lite"].update(path=None)), placed(lambda f: (f / "device/work.tflite").unlink())
        ),
    ),
    _way(
        "a file that is not listed", manifested(lambda m: m["files"].pop("server/update/saved_model.pb")), listed=False
    ),
    _way("a version of old", manifested(lambda m: m.update(version=1)), listed=False),
    _way("a version to come", manifested(lambda m: m.update(version=3)), listed=False),
    _way("a version that is a text", manifested(lambda m: m.update(version="2")), listed=False),
    _way("a version that is true", manifested(lambda m: m.update(version=True)), listed=False),
    _way("no replay among the stages", manifested(lambda m: m["stages"].pop("replay")), listed=False),
    _way("types of replay", manifested(lambda m: m["stages"]["replay"]["outputs"].popitem()), listed=False),
    _way(
        "counts among what report returns",
        manifested(lambda m: m["stages"]["report"]["outputs"].update(x={"dtype": "int32", "shape": []})),
        listed=False,
    ),
    _way(
        "no counts in the sum",
        manifested(lambda m: m["stages"]["accumulate"]["outputs"].pop("sum__0__clipped")),
        listed=False,
    ),
    _way("a path of a stage", manifested(lambda m: m["stages"]["replay"].update(path="server/update")), listed=False),
    _way("a size that is less by one", manifested(_resized(lambda size: size - 1)), listed=False),
    _way("a size that is more by one", manifested(_resized(lambda size: size + 1)), listed=False),
    _way("a size below zero", manifested(_resized(lambda size: -1)), listed=False),
    _way("a size that is a fraction", manifested(_resized(float)), listed=False),
    _way("a size of exabytes", manifested(_resized(lambda size: 2**62)), listed=False),
    _way("one key more", manifested(lambda m: m.update(audited=True)), listed=False),
    _way("a size that is a text", manifested(lambda m: m["files"]["run.json"].update(bytes="9")), listed=False),
    _way(
        "a size of 10,000 digits",
        written("manifest.json", lambda old: old.replace(b'"bytes": 1', b'"bytes": 1' + b"0" * 10_000, 1)),
        listed=False,
    ),
    _way(
        "a size that is no number",
        written("manifest.json", lambda old: old.replace(b'"version": 2', b'"version": NaN')),
        listed=False,
    ),
    _way("one key twice", written("manifest.json", lambda old: old.replace(b"{", b'{"version": 2, ', 1)), listed=False),
    _way("a manifest that nests", written("manifest.json", lambda old: b"[" * 100_000), listed=False),
    _way("a manifest of a gigabyte", placed(lambda f: sparse(f / "manifest.json", 2**30)), listed=False),
    _way("a grid, of graphs of floats", manifested(lambda m: m.update(grid=_GRID)), listed=False),
    _way("a grid that is null", manifested(lambda m: m.update(grid=None)), listed=False),
    _way(
        "a grid, in run.json too",
        together(
            run_field(grid_bits=14, grid_max_clients=1000, dimension=1000),
            asked("grid", "auto"),
            manifested(lambda m: m.update(grid=_GRID)),
        ),
        reported=True,
    ),
)
DEVICE_POLICIES = tampering_policies.WAYS
WITHOUT_GRAPHS = (
    *(*FILES_EXCHANGED, *RUNNERS, *MANIFESTS, *STATEMENTS, *TASKS),
    *(*POLICIES, *DEVICE_POLICIES, *FOLDERS),
)
WAYS = (*GRAPHS_OF_OTHERS, *tampering_graphs.WAYS, *WITHOUT_GRAPHS)
GROUPS = {
    "graphs, forms and models of another bundle": GRAPHS_OF_OTHERS,
    "graphs that do something else": tampering_graphs.WAYS,
    "files edited or exchanged": FILES_EXCHANGED,
    "the runner": RUNNERS,
    "the manifest": MANIFESTS,
    "`run.json`, settings, report": STATEMENTS,
    "name of the task": TASKS,
    "policy and artifact": POLICIES,
    "devices' policy": DEVICE_POLICIES,
    "the folder": FOLDERS,
}

# Detected without TensorFlow and without rebuilding graphs.
FOUND_IN_FILES = {
    "a file that is not listed",
    "a version of old",
    "a version to come",
    "a version that is a text",
    "a version that is true",
    "no replay among the stages",
    "a path of a stage",
    "a size that is less by one",
    "a size that is more by one",
    "a size below zero",
    "a size that is a fraction",
    "a size of exabytes",
    "one key more",
    "a size that is a text",
    "a size of 10,000 digits",
    "a size that is no number",
    "one key twice",
    "a manifest that nests",
    "a manifest of a gigabyte",
    "a grid, of graphs of floats",
    "a grid that is null",
    "a grid, in run.json too",
    "a manifest that says TEST ONLY",
    "a version that is a sentence",
    "more noise in run.json",
    "repeatable noise",
    "a separation that only the report has",
    "half of ε",
    "a page that says ε = 0",
    "a text for a number",
    "a number beyond all bounds",
    "run.json that nests",
    "a version that is a claim, everywhere",
    *(way.name for way in POLICIES if way.name != "another artifact"),
    *(way.name for way in DEVICE_POLICIES if way.name not in tampering_policies.STRONGER),
}
