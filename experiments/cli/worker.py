"""`tff-mf worker`: a worker on another machine."""

import ipaddress
import socket

import rich_click as click

from . import _options


@click.command(cls=_options.Command, context_settings={"show_default": True})
@click.option("--port", type=int, required=True, help="Port to listen on.")
@click.option(
    "--public",
    is_flag=True,
    help="Start where other machines can reach the port: a firewall must admit to it the machine that trains alone.",
)
@_options.option("threads")
def worker(port: int, public: bool, threads: int | None) -> None:
    """Run TFF's worker, for `tff-mf train --workers`, until it is ended.

    The worker has neither access control nor encryption, and listens on every interface: everyone who reaches it can
    read clients' data and the secret noise. Therefore it starts only in a network of its own, which has nothing but
    loopback; docs/tff-programs.md has the command, and tunnels from other machines. With --public it starts anywhere.
    """
    from tff_mf.base import required_packages
    from tff_mf.base.errors import InputValueError

    threads = 1 if threads is None else threads
    if not 0 < threads <= 1024:
        raise InputValueError(f"threads={threads} must lie between 1 and 1,024.")
    if not 0 < port < 2**16:
        raise InputValueError(f"port={port} must lie between 1 and 65535.")
    required_packages.packages("A worker", "tensorflow", "tensorflow_privacy", "tensorflow_federated")
    from ... import aggregators

    addresses = _addresses()
    if addresses and not public:
        raise InputValueError(
            f"The worker would answer everyone who reaches {addresses[0]}, without access control and encryption: "
            "start it in a network of its own, as docs/tff-programs.md shows, or pass --public where a firewall admits "
            "to its port the machine that trains alone."
        )
    with aggregators.running_worker(port=port, threads=threads) as started:
        reach = f"everyone who reaches {addresses[0]}" if addresses else "this network alone, which has only loopback"
        click.echo(f"worker at {started.address}, for {reach}")
        status = started.process.wait()
    raise SystemExit(f"tff-mf: TFF's worker has ended with status {status}.")


def _addresses() -> list[str]:
    """Returns the addresses at which other machines may reach this one: all but loopback."""
    import psutil

    found = [
        each.address.partition("%")[0]
        for interface in psutil.net_if_addrs().values()
        for each in interface
        if each.family in (socket.AF_INET, socket.AF_INET6)
    ]
    return [address for address in found if not ipaddress.ip_address(address).is_loopback]
