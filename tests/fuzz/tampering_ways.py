"""All ways to tamper with a bundle."""

import tampering_graphs
import tampering_policies
from tampering import (
    Way,
    annotated,
    edited,
    exchanged,
    manifested,
    placed,
    run_field,
    settings_field,
    sparse,
    taken,
    together,
    written,
)
from tampering_folders import FOLDERS, RUNNER, RUNNERS
from tampering_statements import ANOTHER_RUN, POLICIES, STATEMENTS, STATEMENTS_REBUILT, TASKS

import tff_mf
from tff_mf import grids

_OTHER = ("other",)
_INSECURE = ("insecure",)
_GRAPHS = ("server", "device", "forms")
_GRID = grids.description(tff_mf.Grid(bits=14, max_clients=1000))
_STATED = ("run.json", "planned.json", "planned.md", "device-policy.json")


def _taken(name: str, *files: str, of: str = "other") -> Way:
    return Way(name, taken(*files, of=of), needs=(of,))


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
    _taken("everything of a run with less noise, but its statement", *_GRAPHS, "vocabulary.json"),
    _taken("update with a constant key", "server/update", of="insecure"),
    _taken("all graphs with constant keys", *_GRAPHS, of="insecure"),
    _taken("report of a run with more noise", "planned.json", "planned.md"),
    Way(
        "update that is said to be made with another TensorFlow",
        together(
            taken("server/update"),
            edited("run.json", lambda run: run["versions"].update(tensorflow="2.13.0")),
            manifested(lambda manifest: manifest["versions"].update(tensorflow="2.13.0")),
        ),
        needs=_OTHER,
        reported=True,
    ),
    Way(
        "another run as a whole",
        taken(*_GRAPHS, *_STATED, "vocabulary.json"),
        needs=_OTHER,
        digest_only=ANOTHER_RUN,
    ),
    Way(
        "other words, with their tokenizer",
        taken("vocabulary.json", "device/tokenize"),
        needs=_OTHER,
        digest_only="nothing says which words were meant",
    ),
)
FILES_EXCHANGED = (
    Way("prepare in the place of report", exchanged("server/prepare", "server/report")),
    Way("zero in the place of accumulate", exchanged("server/zero", "server/accumulate")),
    Way("forms exchanged", exchanged("forms/map_reduce/prepare.pb", "forms/map_reduce/report.pb")),
    Way("a field behind a graph", written("server/update/saved_model.pb", lambda old: old + b"\xf8\x7f\x01")),
    Way("a field behind a form", written("forms/map_reduce/update.pb", lambda old: old + b"\xf8\x7f\x01")),
    Way("variables", written("device/work/variables/variables.index", lambda old: old + b"\0")),
    Way("bytes behind the Lite model", written("device/work.tflite", lambda old: old + b"\0" * 16)),
    Way("a Lite model that is none", written("device/work.tflite", lambda old: b"TFL3" * 100)),
    Way("a word in the metadata of the initial model", written("server/initial.safetensors", annotated)),
    Way("blanks in the vocabulary", written("vocabulary.json", lambda old: old + b" ")),
    Way("blanks in the report", written("planned.json", lambda old: old + b" ")),
)
# Found without TensorFlow and without building graphs again; what follows them is not.
MANIFESTS = (
    Way("batch size", manifested(lambda m: m["local_data"].update(batch_size=3)), listed=False),
    Way("all examples", manifested(lambda m: m["local_data"].update(max_examples=None)), listed=False),
    Way("a manifest that says TEST ONLY", manifested(lambda m: m.update(test_only=True)), listed=False),
    Way("a version that is a sentence", manifested(lambda m: m["versions"].update(python="ε ≤ 0.1")), listed=False),
    Way(
        "a file that is not listed", manifested(lambda m: m["files"].pop("server/update/saved_model.pb")), listed=False
    ),
    Way("a version of old", manifested(lambda m: m.update(version=1)), listed=False),
    Way("a version to come", manifested(lambda m: m.update(version=3)), listed=False),
    Way("a version that is a text", manifested(lambda m: m.update(version="2")), listed=False),
    Way("a version that is true", manifested(lambda m: m.update(version=True)), listed=False),
    Way("no replay among the stages", manifested(lambda m: m["stages"].pop("replay")), listed=False),
    Way("a path of a stage", manifested(lambda m: m["stages"]["replay"].update(path="server/update")), listed=False),
    Way("a size that is less by one", manifested(_resized(lambda size: size - 1)), listed=False),
    Way("a size that is more by one", manifested(_resized(lambda size: size + 1)), listed=False),
    Way("a size below zero", manifested(_resized(lambda size: -1)), listed=False),
    Way("a size that is a fraction", manifested(_resized(float)), listed=False),
    Way("a size of exabytes", manifested(_resized(lambda size: 2**62)), listed=False),
    Way("one key more", manifested(lambda m: m.update(audited=True)), listed=False),
    Way("a size that is a text", manifested(lambda m: m["files"]["run.json"].update(bytes="9")), listed=False),
    Way(
        "a size of 10,000 digits",
        written("manifest.json", lambda old: old.replace(b'"bytes": 1', b'"bytes": 1' + b"0" * 10_000, 1)),
        listed=False,
    ),
    Way(
        "a size that is no number",
        written("manifest.json", lambda old: old.replace(b'"version": 2', b'"version": NaN')),
        listed=False,
    ),
    Way("one key twice", written("manifest.json", lambda old: old.replace(b"{", b'{"version": 2, ', 1)), listed=False),
    Way("a manifest that nests", written("manifest.json", lambda old: b"[" * 100_000), listed=False),
    Way("a manifest of a gigabyte", placed(lambda f: sparse(f / "manifest.json", 2**30)), listed=False),
    Way("a grid, of graphs of floats", manifested(lambda m: m.update(grid=_GRID)), listed=False),
    Way("a grid that is null", manifested(lambda m: m.update(grid=None)), listed=False),
    Way(
        "a grid, in run.json too",
        together(
            run_field(grid_bits=14, grid_max_clients=1000, dimension=1000),
            settings_field(grid="auto"),
            manifested(lambda m: m.update(grid=_GRID)),
        ),
        reported=True,
    ),
)
MANIFESTS_REBUILT = (
    Way("types of update", manifested(lambda m: m["stages"]["update"]["inputs"].popitem()), listed=False),
    Way("bytes of a graph", manifested(lambda m: m["stages"]["update"].update(graph_bytes=1)), listed=False),
    Way("type of the process", manifested(lambda m: m.update(process="( -> audited)")), listed=False),
    Way("type of a form", manifested(lambda m: m["forms"].update({"map_reduce/work": "x"})), listed=False),
    Way("why there is no Lite model", manifested(lambda m: m["lite"].update(reason="audited")), listed=False),
    Way("another Python", manifested(lambda m: m["versions"].update(python="3.12.0")), listed=False),
    Way(
        "no Lite model",
        together(
            manifested(lambda m: m["lite"].update(path=None)), placed(lambda f: (f / "device/work.tflite").unlink())
        ),
    ),
    Way("types of replay", manifested(lambda m: m["stages"]["replay"]["outputs"].popitem()), listed=False),
    Way(
        "counts among what report returns",
        manifested(lambda m: m["stages"]["report"]["outputs"].update(x={"dtype": "int32", "shape": []})),
        listed=False,
    ),
    Way(
        "no counts in the sum",
        manifested(lambda m: m["stages"]["accumulate"]["outputs"].pop("sum__0__clipped")),
        listed=False,
    ),
)
DEVICE_POLICIES = tampering_policies.WAYS
WITHOUT_GRAPHS = (
    *(*FILES_EXCHANGED, *RUNNERS, *MANIFESTS, *MANIFESTS_REBUILT, *STATEMENTS, *STATEMENTS_REBUILT, *TASKS),
    *(*POLICIES, *DEVICE_POLICIES, *FOLDERS),
)
WAYS = (*GRAPHS_OF_OTHERS, *tampering_graphs.WAYS, *WITHOUT_GRAPHS)
GROUPS = {
    "graphs, forms and models of another bundle": GRAPHS_OF_OTHERS,
    "graphs that do something else": tampering_graphs.WAYS,
    "files edited or exchanged": FILES_EXCHANGED,
    "the runner": RUNNERS,
    "the manifest": (*MANIFESTS, *MANIFESTS_REBUILT),
    "`run.json`, settings, report": (*STATEMENTS, *STATEMENTS_REBUILT),
    "name of the task": TASKS,
    "policy and artifact": POLICIES,
    "devices' policy": DEVICE_POLICIES,
    "the folder": FOLDERS,
}
