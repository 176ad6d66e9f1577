"""Parameters of the BLTs that trained production language models: McMahan et al. (2024), appendix F."""

from typing import NamedTuple

from tff_mf.problem.participation import MinSep


class Setting(NamedTuple):
    theta: tuple[float, ...]
    omega: tuple[float, ...]
    rounds: int
    participation: MinSep


SETTINGS = {
    "b100": Setting(
        theta=(0.989739971007307, 0.7352001759538236, 0.16776199983448145, 0.1677619998016191),
        omega=(0.20502892852480875, 0.23357939425278557, 0.03479503245420878, 0.03479509876050538),
        rounds=2000,
        participation=MinSep(min_sep=100, max_participations=10),
    ),
    "b400": Setting(
        theta=(0.9999999999921251, 0.9944453083640997, 0.8985923474607591, 0.4912001418098778),
        omega=(0.0070314825502323835, 0.10613806907600574, 0.1898159060327625, 0.1966594748073734),
        rounds=4000,
        participation=MinSep(min_sep=400, max_participations=5),
    ),
    "b1000": Setting(
        theta=(0.99999999999983397, 0.9973412136664378, 0.9584629472313878, 0.6581796870749317),
        omega=(0.008657392263671862, 0.05890891298180163, 0.14548176930698697, 0.2770117005326523),
        rounds=4000,
        participation=MinSep(min_sep=1000, max_participations=2),
    ),
}
