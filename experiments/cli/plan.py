"""`tff-mf plan`: all mechanisms for a deployment, and the recommended one."""

import pathlib

import rich_click as click

import tff_mf
from tff_mf.base.errors import InputValueError
from tff_mf.planning.compare import recommend

from ..output import files
from ..planning import signal_to_noise
from ..planning.deployment import Deployment, claim, options
from ..runs import folders
from ..runs.derived import AUTO, NONE, PAPERS_DIMENSION
from ..sampling.settings import DEFAULT, SECRET, parameters_of
from . import _options, _plan_screen
from ._flags import Flags
from ._screens import Answer

# Beside the recommended mechanism: what any run can use, and noise without correlation.
# Samplings that mechanisms are compared for.
_TAKEN = ("min-sep", "single", "fixed-epochs", "poisson", "cyclic-poisson", "balls-in-bins")


@_options.command()
@_options.setting(
    *(*_options.COHORTS, *_options.SETTING, "workload"),
    required=("population", "clients_per_round", "rounds"),
)
@_options.option("delta", required=True)
@_options.option("epsilon")
@_options.option("noise_multiplier")
@_options.option("grid")
@_options.option("dimension")
@click.option("--thorough", is_flag=True, help="Also optimize mechanisms that take minutes.")
@_options.option("out")
def plan(
    flags: Flags,
    delta: float,
    epsilon: float | None,
    noise_multiplier: float | None,
    grid: int | str | None,
    dimension: int | None,
    thorough: bool,
    out: str | None,
) -> Answer:
    """Compare all mechanisms before a run, and recommend one.

    If not given, --min-sep is as large as the population allows, and --max-participations follows from it. Losses are
    comparable at equal privacy. The last columns are ε at the same noise if clients take part after half or twice as
    many rounds, as often as possible, or if the run is longer; ∞ if the mechanism cannot continue.

    With --sampling poisson or cyclic-poisson, numbers of bands are compared too, with amplification, which holds only
    if cohorts are drawn at random and remain secret; with balls-in-bins, all mechanisms are, by estimates, and the
    recommended one is certified. If not given, groups (--set) is found too, or as large as the population allows.

    --out writes the plan of the recommended mechanism to a folder, which `tff_mf.Plan.load` reads, for
    `private_fed_avg`, Flower and Keras.
    """
    deployment = _deployment(flags, delta, grid=grid, dimension=dimension)
    level = {"epsilon": epsilon, "noise_multiplier": noise_multiplier}
    if out is not None:
        _check_saved(flags, out, grid=grid, dimension=dimension)
    screen = _compared(deployment, level, flags, dimension=dimension, thorough=thorough)
    if out is not None:
        files.make_writable(pathlib.Path(out))
        _saved(screen).save(pathlib.Path(out))
    if screen.signal is not None and screen.signal.hopeless:
        click.echo(signal_to_noise.warning(screen.signal), err=True)
    return Answer(screen.as_dict(), screen.words(written=out))


def _compared(
    deployment: Deployment,
    level: dict[str, float | None],
    flags: Flags,
    *,
    dimension: int | None,
    thorough: bool,
) -> _plan_screen.PlanScreen:
    """Returns all mechanisms for a deployment, with the recommendation."""
    from ..planning import amplified, balls_in_bins
    from ..runs import statements

    in_bins, sampling = flags.sampling == "balls-in-bins", flags.sampling if flags.sampling in SECRET else None
    if in_bins and level["epsilon"] is None:
        raise click.UsageError("--epsilon is missing: with --sampling balls-in-bins, mechanisms are made for an ε.")
    found = options(deployment, **level, dimension=dimension, thorough=thorough)
    chosen, why = recommend(found, deployment.objective)
    stated = claim(deployment, chosen)
    sampled = None
    if sampling is not None and not in_bins:
        sampled = amplified.options(
            deployment, sampling, groups=flags.parameters.get("groups"), **level, thorough=thorough
        )
    uncustomary = statements.uncustomary_delta(deployment.delta, deployment.population)
    largest, signal = signal_to_noise.of_option(deployment, chosen, dimension)
    compared, certified = [], None
    if in_bins and level["epsilon"] is not None:
        compared = balls_in_bins.options(deployment, level["epsilon"], found)
        best = balls_in_bins.recommended(compared)
        bins = tff_mf.BallsInBins(groups=deployment.min_sep, clients_per_round=deployment.clients_per_round)
        certified = amplified.at(deployment, best.mechanism, bins, epsilon=level["epsilon"])
    return _plan_screen.PlanScreen(
        deployment=deployment,
        options=found,
        chosen=chosen,
        why=why,
        claim=stated,
        largest_dimension=largest,
        signal=signal,
        notes=[uncustomary] if uncustomary else [],
        level=level,
        sampling=sampling,
        sampled=sampled,
        in_bins=compared,
        certified=certified,
    )


def _check_saved(flags: Flags, out: str, *, grid: int | str | None, dimension: int | None) -> None:
    """Refuses a plan that no file can hold, or whose noise would not be the noise of the run."""
    if flags.sampling in SECRET:
        raise InputValueError(f"out={out!r} does not go with sampling={flags.sampling!r}: a saved plan is for min-sep.")
    for name, saved in (("adjacency", "zero-out"), ("workload", "prefix-sum")):
        given = getattr(flags, name)
        if given not in (None, saved):
            raise InputValueError(f"out={out!r} does not go with {name}={given!r}: a saved plan is for {saved!r}.")
    if dimension is None and grid != NONE:
        raise InputValueError(
            f"out={out!r} needs dimension, the number of the model's parameters, on which the noise of a grid depends; "
            "or grid='none'."
        )
    folder = pathlib.Path(out)
    if folder.exists():
        folders.check_new(folder)
    else:
        files.check_file(folder)


def _saved(screen: _plan_screen.PlanScreen) -> tff_mf.Plan:
    """Returns the plan of the recommended mechanism."""
    deployment = screen.deployment
    return tff_mf.plan(
        mechanism=screen.chosen.mechanism,
        population=deployment.population,
        clients_per_round=deployment.clients_per_round,
        rounds=deployment.setting.rounds,
        sampling=deployment.setting.participation,
        **screen.level,
        delta=deployment.delta,
        restart_every=deployment.setting.restart_every if deployment.setting.is_restarted else None,
        grid=deployment.setting.grid,
        dimension=deployment.setting.dimension,
    )


def _deployment(flags: Flags, delta: float, *, grid: int | str | None, dimension: int | None) -> Deployment:
    """Returns the deployment of the flags."""
    flags.refuse_sampling("plan", *_TAKEN)
    word = flags.sampling or DEFAULT
    # What is not given follows from the population; the rest is checked.
    flags.drawn(**dict.fromkeys(parameters_of(word), 1))
    flags.check_amplified()
    assert flags.rounds is not None
    assert flags.population is not None
    assert flags.clients_per_round is not None
    groups, most = flags.parameters.get("groups"), flags.population // flags.clients_per_round
    if word == "balls-in-bins" and groups is not None and 0 < most < groups:
        raise InputValueError(
            f"groups={groups} of clients_per_round={flags.clients_per_round} are more than "
            f"population={flags.population}: take at most {most} groups."
        )
    return Deployment.of(
        population=flags.population,
        clients_per_round=flags.clients_per_round,
        rounds=flags.rounds,
        delta=delta,
        min_sep=groups if word == "balls-in-bins" else flags.parameters.get("min_sep"),
        max_participations=1 if flags.sampling == "single" else flags.parameters.get("max_participations"),
        kind=tff_mf.FixedEpoch if word == "fixed-epochs" else tff_mf.MinSep,
        restart_every=flags.restart_every,
        adjacency=flags.adjacency,
        workload=flags.chosen_workload(flags.rounds),
        objective="rms" if flags.objective is None else flags.objective,
        grid=AUTO if grid is None else grid,
        dimension=PAPERS_DIMENSION if dimension is None else dimension,
    )
