"""`tff-mf worker`: a machine that takes part in a run."""

import click


@click.command(context_settings={"show_default": True})
@click.option("--port", type=int, required=True, help="Port to listen on.")
@click.option(
    "--max-concurrent-clients", type=int, default=-1, help="Clients to run at once; no bound if not positive."
)
def worker(port: int, max_concurrent_clients: int) -> None:
    """Run TFF's own worker, for `tff-mf train --workers`, until it is ended.

    The worker listens on every interface, with neither access control nor encryption: whoever reaches
    the port reaches clients' data and secret noise. Run it only in a network that nobody else is in.
    """
    from tff_mf import _requires
    from tff_mf.errors import InputValueError

    if not 0 < port < 2**16:
        raise InputValueError(f"port={port} must lie between 1 and 65535.")
    if max_concurrent_clients >= 2**31:
        raise InputValueError(f"max_concurrent_clients={max_concurrent_clients} must be below 2^31.")
    _requires.packages("A worker", "tensorflow", "tensorflow_privacy", "tensorflow_federated")
    from ... import aggregators

    with aggregators.running_worker(port=port, max_concurrent_computation_calls=max_concurrent_clients) as started:
        click.echo(f"worker at {started.address}")
        status = started.process.wait()
    raise SystemExit(f"tff-mf: TFF's worker has ended with status {status}.")
