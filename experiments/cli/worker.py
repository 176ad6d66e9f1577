"""`tff-mf worker`: a worker on another machine."""

import click


@click.command(context_settings={"show_default": True})
@click.option("--port", type=int, required=True, help="Port to listen on.")
@click.option(
    "--public", is_flag=True, help="Listen on every interface; everyone who reaches the port can use the worker."
)
@click.option(
    "--max-concurrent-clients",
    type=int,
    default=-1,
    help="Number of clients to run at once if they are called one by one; unlimited if not positive.",
)
@click.option(
    "--threads",
    type=int,
    help="Threads inside an operation of its own worker, such as a matrix product; 1 if not given.",
)
def worker(port: int, public: bool, max_concurrent_clients: int, threads: int | None) -> None:
    """Run TFF's worker, for `tff-mf train --workers`, until it is ended.

    The worker has neither access control nor encryption: everyone who reaches it can read clients' data and the secret
    noise. Therefore it runs in its own network namespace, and its port is on this machine's loopback, for your own
    processes only. Other machines connect by an ssh tunnel or a TLS proxy of the same user: see docs/workers.md. With
    --public, everyone who reaches the port can connect.
    """
    from tff_mf import required_packages
    from tff_mf.errors import InputValueError

    threads = 1 if threads is None else threads
    if not 0 < threads <= 1024:
        raise InputValueError(f"threads={threads} must lie between 1 and 1,024.")
    if not 0 < port < 2**16:
        raise InputValueError(f"port={port} must lie between 1 and 65535.")
    if max_concurrent_clients >= 2**31:
        raise InputValueError(f"max_concurrent_clients={max_concurrent_clients} must be below 2^31.")
    required_packages.packages("A worker", "tensorflow", "tensorflow_privacy", "tensorflow_federated")
    from ... import aggregators

    with aggregators.running_worker(
        port=port, max_concurrent_computation_calls=max_concurrent_clients, threads=threads, isolated=not public
    ) as started:
        reach = "everyone who reaches this machine" if public else "your own processes on this machine"
        click.echo(f"worker at {started.address}, for {reach}")
        status = started.process.wait()
    raise SystemExit(f"tff-mf: TFF's worker has ended with status {status}.")
