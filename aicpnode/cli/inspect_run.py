"""``aicp-node inspect HOST:PORT``: what a run is and needs, before joining it."""

from __future__ import annotations

from typing import Annotated

import typer

from aicpnode.cli.options import JsonOption, console, print_json

TIMEOUT_S = 15.0


def inspect(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Any node of the run.")],
    encryption: Annotated[str, typer.Option(help="Of sessions: on or off, as in the run.")] = "on",
    as_json: JsonOption = False,
) -> None:
    """What a run is, who may join it, and what it needs of this machine. Joins nothing and stores nothing."""
    import trio

    from aicpnode.config import NodeConfig
    from aicpnode.errors import RemoteError, UserError
    from aicpnode.genesis import Genesis
    from aicpnode.inspection import describe_run
    from aicpnode.interfaces.render import render
    from aicpnode.network.discovery import ask_genesis
    from aicpnode.network.peers import Address

    config = NodeConfig.make({"bootstrap_peers": (address,), "encryption": encryption}, source="the command line")

    async def ask() -> dict[str, object]:
        where = Address.parse(address)
        peer, raw = await ask_genesis(where, timeout=TIMEOUT_S, encrypted=config.is_encrypted)
        try:
            genesis = Genesis.decode(raw)
        except RemoteError as error:
            raise UserError(
                f"The genesis of {address} cannot be read: {error.reason}.", advice="Ask who runs that node."
            ) from error
        return describe_run(address, peer, genesis, data_dir=config.directory)

    result = trio.run(ask)
    if as_json:
        print_json(result)
    else:
        console().print(render("inspect", result))
