"""Ways to make false statements about the run of a bundle."""

from tampering import (
    Way,
    annotated,
    another_mechanism,
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


def _times(name: str, factor: float):
    """Multiplies a number in run.json, but not in its settings."""
    return lambda run: run.update({name: run[name] * factor})


# Found without TensorFlow and without building graphs again; what follows them is not.
STATEMENTS = (
    Way("more noise in run.json", run_field(noise_multiplier=16.0), reported=True),
    Way("repeatable noise", run_field(insecure_seed=5), reported=True),
    Way("restarts", run_field(restart_every=100), reported=True),
    Way(
        "a separation that only the report has",
        together(run_field(min_sep=16), settings_field(min_sep=16)),
        reported=True,
    ),
    Way("half of ε", together(edited("planned.json", smaller_epsilon(0.5)), with_page)),
    Way("an ε that is less in its ninth digit", together(edited("planned.json", smaller_epsilon(2e-9)), with_page)),
    Way("an ε of devices that is less in its ninth digit", edited("device-policy.json", smaller_claims(2e-9))),
    *(
        Way(f"{name} that is another in its {digit} digit", edited("run.json", _times(name, 1 + by)), reported=True)
        for name in ("noise_multiplier", "clip_norm", "delta")
        for digit, by in (("seventh", 1e-7), ("eighth", -1e-8), ("ninth", 1e-9))
    ),
    Way("a page that says ε = 0", written("planned.md", lambda old: "ε = 0\n".encode() + old)),
    Way("a text for a number", run_field(noise_multiplier="8"), listed=True),
    Way(
        "a number beyond all bounds", written("run.json", lambda old: old.replace(b'"delta": 1e-06', b'"delta": 1e999'))
    ),
    Way("run.json that nests", written("run.json", lambda old: b'{"a":' * 100_000)),
    Way(
        "a version that is a claim, everywhere",
        together(
            edited("run.json", lambda run: run["versions"].update(python="3.11 (audited)")),
            manifested(lambda manifest: manifest["versions"].update(python="3.11 (audited)")),
        ),
        reported=True,
    ),
)
STATEMENTS_REBUILT = (
    Way(
        "more noise in run.json and in the settings",
        together(run_field(noise_multiplier=16.0), settings_field(noise_multiplier=16.0)),
        reported=True,
    ),
    Way(
        "a smaller clip norm everywhere",
        together(run_field(clip_norm=0.5), settings_field(clip_norm=0.5)),
        reported=True,
    ),
    Way("a smaller clip norm in run.json", run_field(clip_norm=0.5), reported=True),
    Way("another divisor", run_field(divisor=8), reported=True),
    Way("a seed", settings_field(seed=1), reported=True),
    Way(
        "a learning rate",
        together(
            settings_field(server_learning_rate=0.5),
            edited("run.json", lambda run: run["resolved"].update(server_learning_rate=0.5)),
        ),
        reported=True,
    ),
    Way("a sampler in other words", run_field(sampler="an enclave that was audited"), reported=True),
    Way("a command", run_field(command=["audited", "by", "us"]), reported=True),
    Way("a cohort that was planned", run_field(cohorts=["0" * 64] * 200), reported=True),
    Way("replace-one", run_field(adjacency="replace-one"), reported=True),
    Way("a simulation", run_field(simulation=True), reported=True),
    Way(
        "a version that is a claim",
        edited("run.json", lambda run: run["versions"].update(python="3.11 (audited)")),
        reported=True,
    ),
    Way("rounds", together(run_field(rounds=150), settings_field(rounds=150)), reported=True),
    Way(
        "another version, everywhere",
        together(
            edited("run.json", lambda run: run["versions"].update(python="3.11.99")),
            manifested(lambda manifest: manifest["versions"].update(python="3.11.99")),
        ),
        reported=True,
        digest_only="a note of what it was made with, where what was made is equal",
    ),
    Way(
        "larger δ everywhere",
        together(run_field(delta=1e-4), settings_field(delta=1e-4)),
        reported=True,
        digest_only=ANOTHER_RUN,
    ),
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
    Way("a shorter separation", edited("participation.json", lambda policy: policy.update(min_sep=9))),
    Way("more participations", edited("participation.json", lambda policy: policy.update(max_participations=13))),
    Way("a shorter timer", edited("participation.json", lambda policy: policy.update(timer_hours=2.0))),
    Way("a separation that is a text", edited("participation.json", lambda policy: policy.update(min_sep="10"))),
    Way("a policy with one key more", edited("participation.json", lambda policy: policy.update(audited=True))),
    Way("a policy of another form", edited("participation.json", lambda policy: policy.clear())),
    Way("another artifact", another_mechanism, reported=True),
    Way(
        "a word in the artifact's metadata",
        together(written("mechanism.safetensors", annotated), fitting_hash),
        reported=True,
    ),
    Way("an artifact that is cut off", written("mechanism.safetensors", lambda old: old[:-8])),
)
