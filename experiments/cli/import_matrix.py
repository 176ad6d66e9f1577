"""`tff-mf import-matrix`: from the files of google-research/federated to an artifact."""

import rich_click as click

from tff_mf.planning.setting import MechanismSetting

from . import _guarantees, _options
from ._flags import Flags
from ._screens import Answer


@_options.command(name="import-matrix")
@click.argument("folder")
@_options.setting("sampling", "min_sep", "max_participations", "workload", "server_momentum", more=())
@_options.option("out", required=True)
def import_matrix(folder: str, flags: Flags, out: str) -> Answer:
    """Check published matrices and save them as an artifact.

    FOLDER holds b_matrix_tensor_pb and c_matrix_tensor_pb, or w_… and h_…, and lr_vector_tensor_pb for learning rates.
    """
    import tff_mf

    from ..output import files
    from ..planning import published_matrices as matrices

    flags.refuse_sampling("import-matrix", "min-sep", "single", "fixed-epochs")
    # No schema of these depends on the rounds, which the files have.
    participation = flags.participation(rounds=1)
    # First, so that wrong values are refused before matrices are read. Learning rates are in the files.
    momentum = getattr(flags.chosen_workload(1), "momentum", 0.0)
    files.check_file(out)
    imported = matrices.import_matrix(folder, participation=participation, momentum=momentum)
    mechanism = imported.mechanism
    optimized_for = mechanism.optimized_for
    assert optimized_for is not None
    tff_mf.save(mechanism, out)
    setting = MechanismSetting(
        rounds=optimized_for.rounds, participation=participation, workload=optimized_for.workload
    )
    found = _guarantees.Found(mechanism=mechanism, setting=setting, flags=flags)
    own = {"out": out, "bands": imported.bands, "dropped": imported.dropped, "mismatch": imported.mismatch}
    return found.answer({**found.described(), **own, **found.losses()})
