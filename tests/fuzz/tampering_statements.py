"""Ways to make false statements about the run of a bundle."""

from tampering import (
    Change,
    Way,
    annotated,
    another_mechanism,
    asked,
    devices_told,
    edited,
    fitting_hash,
    manifested,
    renamed,
    run_field,
    settings_field,
    smaller_claims,
    smaller_epsilon,
    together,
    with_page,
    written,
)

ANOTHER_RUN = "it is another run, which its report describes as it is"


def _way(name: str, change: Change, **more) -> Way:
    return Way(name=name, change=change, **more)


def _times(name: str, factor: float):
    """Multiplies a number in run.json, and in its settings."""

    def edit(run: dict) -> None:
        for each in (run, run["settings"]):
            each.update({name: each[name] * factor} if name in each else {})

    return edit


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
    _way("half of ε", together(edited("planned.json", smaller_epsilon(0.5)), with_page)),
    _way("an ε that is less in its ninth digit", together(edited("planned.json", smaller_epsilon(2e-9)), with_page)),
    _way("an ε of devices that is less in its ninth digit", edited("device-policy.json", smaller_claims(2e-9))),
    *(
        _way(f"{name} that is another in its {digit} digit", edited("run.json", _times(name, 1 + by)), reported=True)
        for name in ("noise_multiplier", "clip_norm", "delta")
        for digit, by in (("seventh", 1e-7), ("eighth", -1e-8), ("ninth", 1e-9))
    ),
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
        digest_only=ANOTHER_RUN,
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
        digest_only=ANOTHER_RUN,
    ),
    _way(
        "shorter rounds, and so a shorter timer",
        together(
            edited("participation.json", lambda policy: policy.update(round_minutes=1.0, timer_hours=10 / 60)),
            devices_told,
        ),
        digest_only="nothing says how long a round takes",
    ),
    _way(
        "data that the settings name",
        asked("dataset", "stackoverflow"),
        reported=True,
        digest_only="a note of where the simulation's examples were; nothing is read from there",
    ),
)
TASKS = (
    _way(
        "another name of the task",
        renamed("tff-mf-words"),
        digest_only="a name of the operator's: nothing says what the task was called",
    ),
    _way(
        "the name of another task",
        renamed("tff-mf-000000000000"),
        digest_only="a name of the operator's, even where it looks like one that follows from the settings",
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
