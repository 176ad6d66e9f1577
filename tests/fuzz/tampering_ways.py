"""All ways to tamper with a bundle."""

import os
import pathlib

import tampering_graphs
from tampering import (
    Way,
    annotated,
    another_mechanism,
    asked,
    deep,
    edited,
    exchanged,
    fitting_hash,
    linked,
    manifested,
    placed,
    run_field,
    settings_field,
    smaller_epsilon,
    socket_at,
    sparse,
    taken,
    together,
    with_page,
    written,
)

_OTHER = ("other",)
_INSECURE = ("insecure",)
_ANOTHER_RUN = "it is another run, which its report describes as it is"
_GRAPHS = ("server", "device", "forms")


def _way(name: str, change, **more) -> Way:
    return Way(name=name, change=change, **more)


def _taken(name: str, *files: str, of: str = "other") -> Way:
    return Way(name=name, change=taken(*files, of=of), needs=(of,))


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
        taken(*_GRAPHS, "run.json", "configuration.toml", "vocabulary.json", "planned.json", "planned.md"),
        needs=_OTHER,
        digest_only=_ANOTHER_RUN,
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
)
STATEMENTS = (
    _way("more noise in run.json", run_field(noise_multiplier=16.0), reported=True),
    _way(
        "more noise in run.json and in the settings",
        together(run_field(noise_multiplier=16.0), asked("noise_multiplier", 16.0)),
        reported=True,
    ),
    _way(
        "a smaller clip norm everywhere",
        together(run_field(clip_norm=0.5), settings_field(clip_norm=0.5), asked("clip_norm", 0.5)),
        reported=True,
    ),
    _way("a smaller clip norm in run.json", run_field(clip_norm=0.5), reported=True),
    _way("another divisor", run_field(divisor=8), reported=True),
    _way("a seed", together(settings_field(seed=1), asked("seed", 1)), reported=True),
    _way(
        "a learning rate",
        together(settings_field(server_learning_rate=0.5), asked("server_learning_rate", 0.5)),
        reported=True,
    ),
    _way("repeatable noise", run_field(insecure_seed=5), reported=True),
    _way("a sampler in other words", run_field(sampler="an enclave that was audited"), reported=True),
    _way("a command", run_field(command=["audited", "by", "us"]), reported=True),
    _way("a cohort that was planned", run_field(cohorts=["0" * 64] * 200), reported=True),
    _way("restarts", run_field(restart_every=100), reported=True),
    _way("replace-one", run_field(adjacency="replace-one"), reported=True),
    _way("a simulation", run_field(simulation=True), reported=True),
    _way(
        "a version that is a claim",
        edited("run.json", lambda run: run["versions"].update(python="3.11 (audited)")),
        reported=True,
    ),
    _way("a separation that only the report has", together(run_field(min_sep=16), asked("min_sep", 16)), reported=True),
    _way("rounds", together(run_field(rounds=150), asked("rounds", 150)), reported=True),
    _way("half of ε", together(edited("planned.json", smaller_epsilon), with_page)),
    _way("a page that says ε = 0", written("planned.md", lambda old: "ε = 0\n".encode() + old)),
    _way("a text for a number", run_field(noise_multiplier="8"), listed=True),
    _way(
        "a number beyond all bounds", written("run.json", lambda old: old.replace(b'"delta": 1e-06', b'"delta": 1e999'))
    ),
    _way("run.json that nests", written("run.json", lambda old: b'{"a":' * 100_000)),
    _way(
        "a version that is a claim, everywhere",
        together(
            edited("run.json", lambda run: run["versions"].update(python="3.11 (audited)")),
            manifested(lambda manifest: manifest["versions"].update(python="3.11 (audited)")),
        ),
        reported=True,
    ),
    _way(
        "another version, everywhere",
        together(
            edited("run.json", lambda run: run["versions"].update(python="3.11.99")),
            manifested(lambda manifest: manifest["versions"].update(python="3.11.99")),
        ),
        reported=True,
        digest_only="a note of what it was made with, where what was made is equal",
    ),
    _way(
        "larger δ everywhere",
        together(run_field(delta=1e-4), asked("delta", 1e-4)),
        reported=True,
        digest_only=_ANOTHER_RUN,
    ),
    _way(
        "a larger population",
        run_field(population=10**6),
        reported=True,
        digest_only="nothing says how many devices there are",
    ),
    _way(
        "a longer separation everywhere",
        together(
            run_field(min_sep=16),
            asked("min_sep", 16),
            edited("participation.json", lambda policy: policy.update(min_sep=16, timer_hours=4.0)),
        ),
        reported=True,
        digest_only=_ANOTHER_RUN,
    ),
    _way(
        "shorter rounds, and so a shorter timer",
        edited("participation.json", lambda policy: policy.update(round_minutes=1.0, timer_hours=10 / 60)),
        digest_only="nothing says how long a round takes",
    ),
    _way(
        "data that the settings name",
        asked("dataset", "stackoverflow"),
        digest_only="a note of where the simulation's examples were; nothing is read from there",
    ),
)
POLICIES = (
    _way("a shorter separation", edited("participation.json", lambda policy: policy.update(min_sep=9))),
    _way("more participations", edited("participation.json", lambda policy: policy.update(max_participations=13))),
    _way("a shorter timer", edited("participation.json", lambda policy: policy.update(timer_hours=2.0))),
    _way("a separation that is a text", edited("participation.json", lambda policy: policy.update(min_sep="10"))),
    _way("a policy with one key more", edited("participation.json", lambda policy: policy.update(audited=True))),
    _way("a policy of another form", edited("participation.json", lambda policy: policy.clear())),
    _way("another artifact", another_mechanism, reported=True),
    _way(
        "a word in the artifact's metadata",
        together(written("mechanism.safetensors", annotated), fitting_hash),
        reported=True,
    ),
    _way("an artifact that is cut off", written("mechanism.safetensors", lambda old: old[:-8])),
)
FOLDERS = (
    _way("a fingerprint", placed(lambda f: (f / "server/update/fingerprint.pb").write_bytes(b"")), listed=False),
    _way(
        "a link to a file inside",
        placed(lambda f: ((f / "planned.md").unlink(), (f / "planned.md").symlink_to("run.json"))),
        listed=False,
    ),
    _way("a link to a file outside", linked("run.json", "outside.json"), listed=False),
    _way("a link to a folder outside", linked("server/update", "outside"), listed=False),
    _way("a manifest that is a link", linked("manifest.json", "outside.manifest"), listed=False),
    _way("a pipe", placed(lambda f: ((f / "run.json").unlink(), os.mkfifo(f / "run.json"))), listed=False),
    _way(
        "a manifest that is a pipe",
        placed(lambda f: ((f / "manifest.json").unlink(), os.mkfifo(f / "manifest.json"))),
        listed=False,
    ),
    _way("a socket", placed(lambda f: ((f / "run.json").unlink(), socket_at(f / "run.json"))), listed=False),
    _way(
        "a device",
        placed(lambda f: ((f / "run.json").unlink(), (f / "run.json").symlink_to("/dev/zero"))),
        listed=False,
    ),
    _way("a file that runs as its owner", placed(lambda f: (f / "run.json").chmod(0o4755))),
    _way("a file that all may write", placed(lambda f: (f / "run.json").chmod(0o666))),
    _way("a folder that its group may write", placed(lambda f: (f / "server").chmod(0o770))),
    _way("one file more", placed(lambda f: (f / "device/more").write_text("")), listed=False),
    _way("one file more, listed", placed(lambda f: (f / "device/more").write_text(""))),
    _way("an empty folder", placed(lambda f: (f / "device/work/assets").mkdir())),
    _way(
        "a folder in the place of a file",
        placed(lambda f: ((f / "run.json").unlink(), (f / "run.json").mkdir())),
        listed=False,
    ),
    _way("a name of two lines", placed(lambda f: (f / "a\nverified: its files").write_text("")), listed=False),
    _way("a name of two lines, listed", placed(lambda f: (f / "a\nverified: its files").write_text(""))),
    _way("a name that moves the cursor", placed(lambda f: (f / "\x1b[2Jverified").write_text("")), listed=False),
    _way("a name in capitals", placed(lambda f: (f / "Run.json").write_text(""))),
    _way(
        "a name that is no text",
        placed(lambda f: pathlib.Path(os.fsdecode(bytes(f) + b"/\xff")).write_text("")),
        listed=False,
    ),
    _way("folders 3,000 deep", placed(deep), listed=False),
    _way("a folder that holds itself", placed(lambda f: (f / "server/loop").symlink_to("..")), listed=False),
    _way("a file of ten gigabytes", placed(lambda f: sparse(f / "run.json", 10 * 10**9)), listed=False),
    _way(
        "a file of ten gigabytes, listed",
        together(
            manifested(lambda m: m["files"]["server/initial.safetensors"].update(bytes=10 * 10**9)),
            placed(lambda f: sparse(f / "server/initial.safetensors", 10 * 10**9)),
        ),
        listed=False,
    ),
    _way("a signature that is a folder", placed(lambda f: (f / "manifest.json.sig").mkdir()), listed=False),
    _way("a signature of a gigabyte", placed(lambda f: sparse(f / "manifest.json.sig", 2**30)), listed=False),
)
WITHOUT_GRAPHS = (*FILES_EXCHANGED, *MANIFESTS, *STATEMENTS, *POLICIES, *FOLDERS)
WAYS = (*GRAPHS_OF_OTHERS, *tampering_graphs.WAYS, *WITHOUT_GRAPHS)

# What is found without TensorFlow, and without any graph that is built anew.
FOUND_IN_FILES = {
    "a file that is not listed",
    "a version of old",
    "one key more",
    "a size that is a text",
    "a size of 10,000 digits",
    "a size that is no number",
    "one key twice",
    "a manifest that nests",
    "a manifest of a gigabyte",
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
}
