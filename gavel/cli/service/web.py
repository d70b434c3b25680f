"""`gavel web`: the page of a cluster, and its REST interface."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from gavel.cli.io.options import ADDRESS

PORT = 7080


@click.command()
@ADDRESS
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="A file with the gateway's own token, of the role viewer.  [default: GAVEL_TOKEN, or the context's]",
)
@click.option(
    "--listen",
    default=f"127.0.0.1:{PORT}",
    show_default=True,
    metavar="HOST:PORT",
    help="Where to listen; beyond this machine only with TLS.",
)
@click.option("--tls-cert", type=click.Path(dir_okay=False), metavar="FILE", help="The certificate, as PEM.")
@click.option("--tls-key", type=click.Path(dir_okay=False), metavar="FILE", help="Its private key, as PEM.")
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="A host name by which browsers reach the gateway through a proxy; may be repeated. The names in the "
    "certificate and those of this machine's loopback are known.",
)
@click.option(
    "--key-file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="The key that seals cookies, made if it does not exist.  [default: a new key at each start, so that users "
    "sign in again]",
)
@click.option(
    "--pages",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help="Serve these pages instead of Gavel's own.",
)
@click.option("--open", "opens", is_flag=True, help="Open the page in this machine's browser.")
@click.option("--announce", type=click.Path(dir_okay=False), hidden=True)
@click.option("--any-port", is_flag=True, hidden=True)
def web(
    address: str | None,
    context: str | None,
    token_file: str | None,
    listen: str,
    tls_cert: str | None,
    tls_key: str | None,
    names: tuple[str, ...],
    key_file: str | None,
    pages: str | None,
    opens: bool,
    announce: str | None,
    any_port: bool,
) -> None:
    """Serve the page of a cluster until stopped: queue, jobs, nodes, rounds, shares, usage; and REST under /v1.

    It is a client of the scheduler like any other, and may run on any machine. Users sign in with their own tokens.
    Without tokens, in single-user mode, the printed address contains a code that signs you in.
    """
    from gavel.cli.installation import require

    require("web", "`gavel web`")

    import asyncio

    from gavel.cli.io.session import errors_as_faults
    from gavel.client.settings import find_connection
    from gavel.web.assets import FOLDER
    from gavel.web.server import WebConfig, serve

    with errors_as_faults():
        token = None if token_file is None else _token_in(Path(token_file))
        connection = find_connection(address, token, context=context)
        config = WebConfig(
            listen=listen,
            names=names,
            certificate=_path(tls_cert),
            key=_path(tls_key),
            key_file=_path(key_file),
            pages=_path(pages) or FOLDER,
            announce=_path(announce),
            any_port=any_port,
        )

        def ready(url: str, stop: Callable[[], None]) -> None:
            # The program that started us shows the address itself; logs are no place for the code.
            if announce is None:
                click.echo(f"web: {url}")
            click.echo(f"the scheduler is at {connection.address}; Ctrl-C stops only this gateway")
            if opens:
                import webbrowser

                webbrowser.open(url)

        asyncio.run(serve(config, connection, ready))


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _token_in(path: Path) -> str:
    from gavel.client import Invalid

    try:
        token = path.read_text().strip()
    except (OSError, ValueError) as error:
        why = (getattr(error, "strerror", None) or str(error)).lower()
        raise Invalid(f"--token-file {path}: {why}", field="token_file") from None
    if not token:
        raise Invalid(f"--token-file {path}: is empty", field="token_file")
    return token
