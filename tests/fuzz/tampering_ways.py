"""All ways to tamper with a bundle: its folder and runner, its statements, its manifest, and its graphs."""

import os
import pathlib
from collections.abc import Callable

import tampering_graphs
import tampering_policies
from tampering import (
    Way,
    annotated,
    another_mechanism,
    deep,
    devices_told,
    edited,
    exchanged,
    exchanged_mechanism,
    fitting_hash,
    linked,
    manifested,
    placed,
    programmed,
    renamed,
    resealed,
    run_field,
    settings_field,
    smaller_claims,
    smaller_epsilon,
    socket_at,
    sparse,
    taken,
    together,
    with_page,
    written,
)

import tff_mf
from tff_mf.problem import grids

RUNNER = "runner.pyz"
_OWN, _SHARED = "experiments/bundles/runner", "experiments/runs"
_SAVE = "    def save(self, round_number: int, state: Tensors, about: Mapping[str, Any]) -> None:\n"
_DOC = '        """Saves a state of the stages; see `Checkpoints.save`."""\n'
_REMOVE = "    for round_number in saved_rounds(folder):\n"
_RULE = "        others = [number for number in past if number != round_number]\n"
RUNNERS = (
    *(
        Way(name, programmed(*change))
        for name, change in {
            "a runner that checks no file": (f"{_OWN}/_bundle", "    while waiting:\n", "    while False:\n"),
            "a runner that checks no hash": (
                f"{_OWN}/_bundle",
                'digest.hexdigest() == expected["sha256"]',
                'len(digest.hexdigest()) == len(expected["sha256"])',
            ),
            "a runner that checks no update": (
                f"{_OWN}/_bundle",
                "    if update.keys() != types.keys():",
                "    return dict(update)\n    if False:",
            ),
            "a runner that asks for no digest": (f"{_OWN}/_bundle", "if digest not in (None,", "if False and (None,"),
            "a runner that chooses anybody": (f"{_SHARED}/rules", _RULE, '        return ""\n' + _RULE),
            "a runner that prints the keys": (
                f"{_OWN}/_states",
                _SAVE + _DOC,
                _SAVE + _DOC + '        print(state["noise__keys"])\n',
            ),
            "a runner that leaves all readable": (
                "base/checkpoint_files",
                "files.atomic_file(path, mode=0o600,",
                "files.atomic_file(path, mode=0o644,",
            ),
            "a runner that deletes no secrets": ("base/checkpoint_files", _REMOVE, "    return\n" + _REMOVE),
            "a runner that fetches more": (
                f"{_OWN}/__init__",
                "from ._bundle import INITIAL",
                "import urllib.request\n\nfrom ._bundle import INITIAL",
            ),
            "a comment in the runner": (f"{_OWN}/commands", "def main(", "# audited\ndef main("),
            "a package that is empty no more": ("base/__init__", "", "import urllib.request\n"),
        }.items()
    ),
    Way("a program before the runner", written(RUNNER, lambda old: b"#!/bin/sh\n" + old)),
    Way("bytes behind the runner", written(RUNNER, lambda old: old + b"\0")),
    Way("a runner of other line ends", written(RUNNER, lambda old: old.replace(b"\n", b"\r\n"))),
    Way("a runner that is empty", written(RUNNER, lambda old: b"")),
    Way("a second runner beside it", placed(lambda f: (f / "tensorflow.py").write_text("print('mine')\n"))),
    Way("a graph in its place", written(RUNNER, lambda old: b"\0" * 100)),
)


def _in_place_of(name: str, make: Callable[[pathlib.Path], object]) -> Callable[[pathlib.Path], object]:
    """Returns what makes something else of a file's name."""
    return lambda folder: ((folder / name).unlink(), make(folder / name))


# Changes of the folder itself, of which the manifest says nothing, and those that it lists.
_UNLISTED = {
    "a fingerprint": placed(lambda f: (f / "server/update/fingerprint.pb").write_bytes(b"")),
    "a link to a file inside": placed(_in_place_of("planned.md", lambda path: path.symlink_to("run.json"))),
    "a link to a file outside": linked("run.json", "outside.json"),
    "a link to a folder outside": linked("server/update", "outside"),
    "a manifest that is a link": linked("manifest.json", "outside.manifest"),
    "a pipe": placed(_in_place_of("run.json", os.mkfifo)),
    "a manifest that is a pipe": placed(_in_place_of("manifest.json", os.mkfifo)),
    "a socket": placed(_in_place_of("run.json", socket_at)),
    "a device": placed(_in_place_of("run.json", lambda path: path.symlink_to("/dev/zero"))),
    "one file more": placed(lambda f: (f / "device/more").write_text("")),
    "a folder in the place of a file": placed(_in_place_of("run.json", pathlib.Path.mkdir)),
    "a name of two lines": placed(lambda f: (f / "a\nverified: its files").write_text("")),
    "a name that moves the cursor": placed(lambda f: (f / "\x1b[2Jverified").write_text("")),
    "a name that is no text": placed(lambda f: pathlib.Path(os.fsdecode(bytes(f) + b"/\xff")).write_text("")),
    "folders 3,000 deep": placed(deep),
    "a folder that holds itself": placed(lambda f: (f / "server/loop").symlink_to("..")),
    "a file of ten gigabytes": placed(lambda f: sparse(f / "run.json", 10 * 10**9)),
    "a file of 200 megabytes, listed": together(
        manifested(lambda m: m["files"]["server/initial.safetensors"].update(bytes=2 * 10**8)),
        placed(lambda f: sparse(f / "server/initial.safetensors", 2 * 10**8)),
    ),
    "a signature in it": placed(lambda f: (f / "manifest.json.sig").write_text("")),
}
_LISTED = {
    "a file that runs as its owner": lambda f: (f / "run.json").chmod(0o4755),
    "a file that all may write": lambda f: (f / "run.json").chmod(0o666),
    "a folder that its group may write": lambda f: (f / "server").chmod(0o770),
    "one file more, listed": lambda f: (f / "device/more").write_text(""),
    "an empty folder": lambda f: (f / "device/work/assets").mkdir(),
    "a name of two lines, listed": lambda f: (f / "a\nverified: its files").write_text(""),
    "a name in capitals": lambda f: (f / "Run.json").write_text(""),
}
FOLDERS = (
    *(Way(name, change, listed=False) for name, change in _UNLISTED.items()),
    *(Way(name, placed(change)) for name, change in _LISTED.items()),
)


_BOLD = "**ε≤0.001**"
ANOTHER_RUN = "it is another run, which its report describes as it is"


def _in_run(name: str, **changes: object) -> Way:
    return Way(name, run_field(**changes), reported=True)


def _everywhere(name: str, digest_only: str = "", **changes: object) -> Way:
    """In run.json and in its settings."""
    return Way(name, together(run_field(**changes), settings_field(**changes)), digest_only, reported=True)


def _made_with(python: str) -> tuple[Callable, Callable]:
    """Another version of Python, in run.json and in the manifest."""
    return (
        edited("run.json", lambda run: run["versions"].update(python=python)),
        manifested(lambda manifest: manifest["versions"].update(python=python)),
    )


def _times(name: str, factor: float):
    """Multiplies a number in run.json, but not in its settings."""
    return lambda run: run.update({name: run[name] * factor})


def _times_everywhere(name: str, factor: float):
    """Multiplies a number in run.json, and in its settings."""

    def edit(run: dict) -> None:
        for each in (run, run["settings"]):
            each.update({name: each[name] * factor} if each[name] is not None else {})

    return edit


# Found without TensorFlow and without building graphs again; what follows them is not.
STATEMENTS = (
    _in_run("more noise in run.json", noise_multiplier=16.0),
    _in_run("repeatable noise", insecure_seed=5),
    _in_run("restarts", restart_every=100),
    _everywhere("a separation that only the report has", min_sep=16),
    Way("half of ε", together(edited("planned.json", smaller_epsilon(0.5)), with_page)),
    Way("an ε that is less in its ninth digit", together(edited("planned.json", smaller_epsilon(2e-9)), with_page)),
    Way("an ε of devices that is less in its ninth digit", edited("device-policy.json", smaller_claims(2e-9))),
    *(
        Way(f"{name} that is another in its {digit} digit", edited("run.json", _times(name, 1 + by)), reported=True)
        for name in ("noise_multiplier", "clip_norm", "delta")
        for digit, by in (("seventh", 1e-7), ("eighth", -1e-8), ("ninth", 1e-9))
    ),
    Way(
        "a digest that is a text",
        together(edited("planned.json", lambda report: report.update(digest=f"0\n\n# Report\n\n{_BOLD}")), with_page),
    ),
    Way(
        "a version of the accountant that is a text",
        together(edited("planned.json", resealed(lambda found: found["accountant"].update(version=_BOLD))), with_page),
    ),
    Way("a page that says ε = 0", written("planned.md", lambda old: "ε = 0\n".encode() + old)),
    Way("a text for a number", run_field(noise_multiplier="8"), listed=True),
    Way(
        "a number beyond all bounds", written("run.json", lambda old: old.replace(b'"delta": 1e-06', b'"delta": 1e999'))
    ),
    Way("run.json that nests", written("run.json", lambda old: b'{"a":' * 100_000)),
    Way("a version that is a claim, everywhere", together(*_made_with("3.11 (audited)")), reported=True),
)
STATEMENTS_REBUILT = (
    _everywhere("more noise in run.json and in the settings", noise_multiplier=16.0),
    _everywhere("a smaller clip norm everywhere", clip_norm=0.5),
    *(
        Way(
            f"{name} that is another in its sixth digit, in the settings too",
            edited("run.json", _times_everywhere(name, 1 + 1e-6)),
            reported=True,
            # No graph has δ. Of the others, graphs have float32 numbers.
            digest_only=ANOTHER_RUN if name == "delta" else "",
        )
        for name in ("noise_multiplier", "clip_norm", "delta")
    ),
    _in_run("a smaller clip norm in run.json", clip_norm=0.5),
    _in_run("another divisor", divisor=8),
    Way("a seed", settings_field(seed=1), reported=True),
    Way(
        "a learning rate",
        together(
            settings_field(server_learning_rate=0.5),
            edited("run.json", lambda run: run.update(server_learning_rate=0.5)),
        ),
        reported=True,
    ),
    Way("an adaptive server", settings_field(server_optimizer="adam"), reported=True),
    _in_run("a sampler in other words", sampler="an enclave that was audited"),
    _in_run("a command", command=["audited", "by", "us"]),
    _in_run("a cohort that was planned", cohorts=["0" * 64] * 200),
    _in_run("replace-one", adjacency="replace-one"),
    _in_run("a simulation", simulation=True),
    Way("a version that is a claim", _made_with("3.11 (audited)")[0], reported=True),
    _everywhere("rounds", rounds=150),
    Way(
        "another version, everywhere",
        together(*_made_with("3.11.99")),
        reported=True,
        digest_only="a note of what it was made with, where what was made is equal",
    ),
    _everywhere("larger δ everywhere", ANOTHER_RUN, delta=1e-4),
    Way(
        "a larger population",
        run_field(population=10**6),
        reported=True,
        digest_only="nothing says how many devices there are",
    ),
    Way(
        "a longer separation everywhere",
        together(
            run_field(min_sep=16),
            settings_field(min_sep=16),
            edited("participation.json", lambda policy: policy.update(min_sep=16, timer_hours=4.0)),
        ),
        reported=True,
        digest_only=ANOTHER_RUN,
    ),
    Way(
        "shorter rounds, and so a shorter timer",
        together(
            edited("participation.json", lambda policy: policy.update(round_minutes=1.0, timer_hours=10 / 60)),
            devices_told,
        ),
        digest_only="nothing says how long a round takes",
    ),
    Way(
        "data that the settings name",
        together(settings_field(dataset="stackoverflow")),
        reported=True,
        digest_only="a note of where the simulation's examples were; nothing is read from there",
    ),
)
TASKS = (
    Way(
        "another name of the task",
        renamed("tff-mf-words"),
        digest_only="a name of the operator's: nothing says what the task was called",
    ),
    Way(
        "the name of another task",
        renamed("tff-mf-000000000000"),
        digest_only="a name of the operator's, even where it looks like one that follows from the settings",
    ),
)
POLICIES = (
    *(
        Way(name, edited("participation.json", change))
        for name, change in {
            "a shorter separation": lambda policy: policy.update(min_sep=9),
            "more participations": lambda policy: policy.update(max_participations=13),
            "a shorter timer": lambda policy: policy.update(timer_hours=2.0),
            "a separation that is a text": lambda policy: policy.update(min_sep="10"),
            "a policy with one key more": lambda policy: policy.update(audited=True),
            "a policy of another form": dict.clear,
        }.items()
    ),
    Way("an artifact that run.json does not name", placed(exchanged_mechanism)),
    Way("another artifact", another_mechanism, reported=True),
    Way(
        "a word in the artifact's metadata",
        together(written("mechanism.safetensors", annotated), fitting_hash),
        reported=True,
    ),
    Way("an artifact that is cut off", written("mechanism.safetensors", lambda old: old[:-8])),
)


_OTHER = ("other",)
_GRAPHS = ("server", "device", "forms")
_GRID = grids.description(tff_mf.Grid(bits=14, max_clients=1000))
_STATED = ("run.json", "planned.json", "planned.md", "device-policy.json")


def _taken(name: str, *files: str, of: str = "other") -> Way:
    return Way(name, taken(*files, of=of), needs=(of,))


def _in_manifest(name: str, change: Callable[[dict], object]) -> Way:
    return Way(name, manifested(change), listed=False)


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
    Way("another run as a whole", taken(*_GRAPHS, *_STATED, "vocabulary.json"), needs=_OTHER, digest_only=ANOTHER_RUN),
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
    Way("blanks in the report", written("planned.json", lambda old: old + b" ")),
    # Its graphs are built anew, which takes ten seconds: not among those that CI tries.
    Way("blanks in the vocabulary", written("vocabulary.json", lambda old: old + b" ")),
)
# What the runner refuses too: versions, digests and lists of files.
LISTS = (
    _in_manifest("a file that is not listed", lambda m: m["files"].pop("server/update/saved_model.pb")),
    _in_manifest("a version of old", lambda m: m.update(version=1)),
    _in_manifest("a version to come", lambda m: m.update(version=3)),
    _in_manifest("a version that is a text", lambda m: m.update(version="2")),
    _in_manifest("a version that is true", lambda m: m.update(version=True)),
    _in_manifest("a size that is less by one", _resized(lambda size: size - 1)),
    _in_manifest("a size that is more by one", _resized(lambda size: size + 1)),
    _in_manifest("a size below zero", _resized(lambda size: -1)),
    _in_manifest("a size that is a fraction", _resized(float)),
    _in_manifest("a size of exabytes", _resized(lambda size: 2**62)),
    _in_manifest("a version that is null", lambda m: m.update(version=None)),
    _in_manifest("files that are a number", lambda m: m.update(files=3)),
    _in_manifest("hashes alone", lambda m: m.update(files={name: each["sha256"] for name, each in m["files"].items()})),
    _in_manifest("another hash", lambda m: m["files"]["run.json"].update(sha256=64 * "0")),
    _in_manifest("a file outside", lambda m: m["files"].update({"../x": {"sha256": "", "bytes": 0}})),
    Way("another digest", edited("manifest.json", lambda m: m.update(digest=64 * "0")), listed=False),
    _in_manifest("a size that is a text", lambda m: m["files"]["run.json"].update(bytes="9")),
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
)
# Found without TensorFlow and without building graphs again; what follows them is not.
MANIFESTS = (
    *LISTS,
    _in_manifest("batch size", lambda m: m["local_data"].update(batch_size=3)),
    _in_manifest("all examples", lambda m: m["local_data"].update(max_examples=None)),
    _in_manifest("a manifest that says TEST ONLY", lambda m: m.update(test_only=True)),
    _in_manifest("a version that is a sentence", lambda m: m["versions"].update(python="ε ≤ 0.1")),
    _in_manifest("no replay among the stages", lambda m: m["stages"].pop("replay")),
    _in_manifest("a path of a stage", lambda m: m["stages"]["replay"].update(path="server/update")),
    _in_manifest("one key more", lambda m: m.update(audited=True)),
    _in_manifest(
        "a type that moves the cursor",
        lambda m: next(iter(m["stages"]["merge"]["inputs"].values())).update(dtype="\x1b[2J"),
    ),
    _in_manifest("a grid, of graphs of floats", lambda m: m.update(grid=_GRID)),
    _in_manifest("a grid that is null", lambda m: m.update(grid=None)),
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
    _in_manifest("types of update", lambda m: m["stages"]["update"]["inputs"].popitem()),
    _in_manifest("bytes of a graph", lambda m: m["stages"]["update"].update(graph_bytes=1)),
    _in_manifest("type of the process", lambda m: m.update(process="( -> audited)")),
    _in_manifest("type of a form", lambda m: m["forms"].update({"map_reduce/work": "x"})),
    _in_manifest("why there is no Lite model", lambda m: m["lite"].update(reason="audited")),
    _in_manifest("another Python", lambda m: m["versions"].update(python="3.12.0")),
    Way(
        "no Lite model",
        together(
            manifested(lambda m: m["lite"].update(path=None)), placed(lambda f: (f / "device/work.tflite").unlink())
        ),
    ),
    _in_manifest("types of replay", lambda m: m["stages"]["replay"]["outputs"].popitem()),
    _in_manifest(
        "counts among what report returns",
        lambda m: m["stages"]["report"]["outputs"].update(x={"dtype": "int32", "shape": []}),
    ),
    _in_manifest("no counts in the sum", lambda m: m["stages"]["accumulate"]["outputs"].pop("sum__0__clipped")),
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
