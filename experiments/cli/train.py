"""`tff-mf train`: one private training run."""

import pathlib
from typing import Any

import click

from . import _options


def _model_options(command: Any) -> Any:
    for option in (
        click.option("--units", type=int, default=670, show_default=True, help="LSTM units, or filters of conv."),
        click.option("--embedding-size", type=int, default=96, show_default=True),
        click.option("--vocab-size", type=int, default=10_000, show_default=True, help="Most frequent words to know."),
        click.option("--model", "architecture", default="lstm", show_default=True, help="lstm (the papers') or conv."),
    ):
        command = option(command)
    return command


@click.command(context_settings={"show_default": True})
@click.option("--dataset", default="pydoc", help="`pydoc` (made on first use), or a file in StackOverflow's format.")
@click.option("--mechanism", default="blt", help="blt (optimized for the run), identity, production:NAME or a FILE.")
@click.option("--buffers", type=int, help="Buffers of an optimized blt; chosen by the optimizer if not given.")
@_options.rounds
@click.option("--clients-per-round", type=int, required=True, help="Clients that train in a round.")
@click.option("--cohort", type=int, help="Clients that a round stands for, simulated by --clients-per-round.")
@_options.participation_options
@click.option("--epsilon", type=float, help="ε that the whole run may reach; or give --noise-multiplier.")
@click.option("--noise-multiplier", type=float, help="σ: standard deviation of Z over the clip norm, for the cohort.")
@_options.delta
@_model_options
@click.option("--clip-norm", type=float, default=1.0)
@click.option("--client-learning-rate", type=float, default=1.0)
@click.option("--server-learning-rate", type=float, default=1.0)
@click.option("--server-momentum", type=float, default=0.95)
@click.option(
    "--server-warmup", type=float, default=0.15, help="Part of the rounds over which the server's rate rises."
)
@click.option("--server-cooldown", type=float, default=0.25, help="Part of the rounds over which it falls.")
@click.option("--batch-size", type=int, default=16)
@click.option("--max-examples", type=int, default=256, help="Sentences a client uses at most in one round.")
@click.option("--client-epochs", type=int, default=1)
@click.option("--evaluate-every", type=int, default=25, help="Rounds between evaluations.")
@click.option("--evaluation-examples", type=int, default=2000)
@click.option("--seed", type=int, default=0, help="Seed of cohorts and initial model, never of noise.")
@click.option("--insecure-seed", type=int, help="Seed of the noise: TEST ONLY, a run with it has no privacy.")
@click.option("--checkpoint-every", type=int, default=25, help="Rounds between checkpoints; 0 for none.")
@click.option("--resume", is_flag=True, help="Go on with the run in --out, with the options that it was started with.")
@click.option("--workers", default="", help="Addresses host:port of running workers, with commas between them.")
@click.option("--restarts", type=int, default=0, help="How often to go on by itself when a worker dies.")
@click.option("--out", default="runs/train", help="Folder of the run's files; must be new or empty.")
@_options.as_json
def train(
    dataset: str,
    mechanism: str,
    buffers: int | None,
    rounds: int,
    clients_per_round: int,
    cohort: int | None,
    min_sep: int | None,
    max_participations: int | None,
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    architecture: str,
    vocab_size: int,
    embedding_size: int,
    units: int,
    insecure_seed: int | None,
    checkpoint_every: int,
    resume: bool,
    workers: str,
    restarts: int,
    out: str,
    as_json: bool,
    **others: Any,
) -> None:
    """Train a next-word model with federated averaging and a mechanism's noise.

    FedSGDM: clients run SGD, the server SGD with momentum on the noised mean of their clipped updates.
    The last line states accuracy and the guarantee.
    """
    from tff_mf import _requires

    _requires.packages("Training", "tensorflow", "tensorflow_privacy", "tensorflow_federated")
    from .. import progress, runs, settings
    from ..privacy import plan_privacy

    chosen_settings = settings.TrainingSettings(
        model=settings.ModelConfig(
            architecture=architecture, vocab_size=vocab_size, embedding_size=embedding_size, units=units
        ),
        **others,
    )
    execution = settings.ExecutionSettings(
        checkpoint_every=checkpoint_every,
        resume=resume,
        workers=tuple(address.strip() for address in workers.split(",") if address.strip()),
        restarts=restarts,
    )
    path = pathlib.Path(out)
    if resume:
        runs.resumable_folder(path)
    participation = _options.participation(min_sep, max_participations)
    if mechanism == "blt":
        import tff_mf

        # A mechanism that differed in its last digit could not go on with the noise of the first.
        chosen = runs.begun_mechanism(path) if resume else None
        if chosen is None:
            chosen = tff_mf.optimize_blt(rounds=rounds, participation=participation, buffers=buffers)
    elif buffers is not None:
        raise click.UsageError("--buffers goes with --mechanism blt.")
    else:
        chosen = _options.load_mechanism(mechanism)
    privacy = plan_privacy(
        mechanism=chosen,
        rounds=rounds,
        participation=participation,
        delta=delta,
        clients_per_round=clients_per_round,
        cohort=cohort,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        insecure_seed=insecure_seed,
    )
    folder = path if resume else runs.new_folder(path)
    if mechanism == "blt" and not resume:
        runs.keep_mechanism(folder, chosen)
    data = runs.data_file(dataset)

    from ... import aggregators
    from .. import training

    try:
        with progress.rounds(rounds, mechanism) as on_round:
            result = training.run(
                chosen_settings, privacy, data=data, out=folder, on_round=on_round, execution=execution
            )
    except aggregators.WorkerLostError as error:
        raise SystemExit(f"tff-mf: {error} (--resume)") from None
    if as_json:
        _options.report(result.summary, as_json=True)
    else:
        click.echo(f"accuracy {100 * result.summary['accuracy']:.2f} %, {result.statement}")
    if not result.holds:
        raise SystemExit(1)
