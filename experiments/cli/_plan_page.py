"""The web page of `tff-mf plan`."""

import pathlib

from ._plan_screen import PlanScreen

# Beside the recommended mechanism: what any run can use, and noise without correlation.
_ALSO = ("blt", "identity")


def write(
    screen: PlanScreen,
    page: pathlib.Path,
    *,
    epsilon: float | None,
    noise_multiplier: float | None,
    max_participations: int | None,
) -> None:
    """Writes the page of a plan; no ε is computed for it unless the plan states one.

    Args:
        screen: The plan.
        page: The file.
        epsilon: ε as it was given.
        noise_multiplier: σ as it was given.
        max_participations: k as it was given.
    """
    from .. import pages
    from ..planning import curves, explored

    names = list(dict.fromkeys([screen.chosen.name, *_ALSO]))
    optimized = {option.name: option for option in screen.options if option.mechanism is not None}
    shown = [optimized[name] for name in names if name in optimized]
    points = None
    if not screen.refused:
        points = explored.explored(
            screen.deployment,
            names,
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            max_participations=max_participations,
        )
    drawn = curves.curves(screen.deployment, shown, screen.chosen, states=not screen.refused)
    pages.write_page(page, pages.plan_page(screen.as_dict(), drawn, points, text=list(screen.lines())))
