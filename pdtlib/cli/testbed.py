"""``pdt testbed``: a cluster in this machine, made of namespaces and links that are as slow as you say."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pdtlib.plan.units import bytes_text

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
Name = Annotated[str, typer.Option(help="Which testbed, where there are several.")]
Node = Annotated[int, typer.Argument(help="The node's number, from 0.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextmanager
def told() -> Iterator[None]:
    """Say what cannot be done in one line: exit code 2 for a wrong call, 1 where the machine refuses."""
    from pdtlib.testbed.namespaces import Impossible

    try:
        yield
    except Impossible as error:
        typer.echo(f"pdt testbed: this machine cannot do that: {error}", err=True)
        raise typer.Exit(1) from None
    except ValueError as error:
        typer.echo(f"pdt testbed: {error}", err=True)
        raise typer.Exit(2) from None


@app.callback()
def testbed() -> None:
    """A cluster in this machine: nodes are namespaces, the links between them are rate-limited."""


@app.command()
def up(
    nodes: Annotated[int, typer.Option(help="Nodes to make.")] = 2,
    ranks: Annotated[int, typer.Option(help="Ranks that a run starts on each node.")] = 2,
    inter: Annotated[str, typer.Option(help="Rate of each node's link, each way.")] = "200mbit",
    name: Name = "default",
) -> None:
    """Make a testbed. It needs root, or a system that lets users make namespaces."""
    from pdtlib.testbed import cluster

    with told():
        made = cluster.up(name, nodes=nodes, ranks=ranks, inter=inter)
    kind = "a user namespace" if made.switch.user else "root"
    addresses = ", ".join(cluster.address(node) for node in range(nodes))
    typer.echo(f"{nodes} nodes for {ranks} ranks each, {inter} between them (made with {kind}): {addresses}")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    min_nodes: Annotated[
        int | None, typer.Option(help="Go on while so many nodes are left; nodes may come back.")
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(help="Failures after which torchrun starts the ranks anew.")
    ] = 0,
    name: Name = "default",
) -> None:
    """Run JOB --out DIR ..., or any script or `-m module`, with torchrun on all nodes.

    Prints what each node's interface has carried. Exit code 0 when all went well.
    """
    from pdtlib.testbed import cluster, launch

    words = list(context.args)
    if not words:
        typer.echo("pdt testbed run: give a job (with --out DIR), a script, or -m and a module", err=True)
        raise typer.Exit(2)
    if Path(words[0]).suffix in (".toml", ".json"):
        words = ["-m", "pdtlib.train", *words]
    with told():
        before = {one.node: one for one in cluster.find(name).traffic()}
        code = launch.run(words, name=name, min_nodes=min_nodes, max_restarts=max_restarts, say=typer.echo)
        for now in cluster.find(name).traffic():
            was = before.get(now.node)
            sent = now.sent_bytes - (was.sent_bytes if was else 0)
            received = now.received_bytes - (was.received_bytes if was else 0)
            typer.echo(f"node {now.node} sent {bytes_text(sent)} and received {bytes_text(received)}")
    raise typer.Exit(code)


@app.command()
def kill_node(node: Node, name: Name = "default") -> None:
    """Cut a node's power: its processes, memory and link are gone at once."""
    from pdtlib.testbed import cluster

    with told():
        cluster.kill_node(node, name=name)
    typer.echo(f"node {node} is down")


@app.command()
def start_node(node: Node, name: Name = "default") -> None:
    """Start a node that is down."""
    from pdtlib.testbed import cluster

    with told():
        cluster.start_node(node, name=name)
    typer.echo(f"node {node} is up")


@app.command()
def link(
    state: Annotated[str, typer.Argument(help="down, up, or a rate such as 50mbit.")],
    node: Annotated[int, typer.Option(help="Whose link.")] = 1,
    name: Name = "default",
) -> None:
    """Pull or plug a node's cable, or change its speed; its processes live on."""
    from pdtlib.testbed import cluster

    with told():
        if state in ("up", "down"):
            cluster.set_link(node, state == "up", name=name)
        else:
            cluster.set_rate(node, state, name=name)
    typer.echo(f"node {node}: link {state}")


@app.command("bytes")
def bytes_(name: Name = "default", json_: Json = False) -> None:
    """What each node's interface has carried so far, headers included."""
    from pdtlib.testbed import cluster

    with told():
        rows = cluster.find(name).traffic()
    if json_:
        typer.echo(json.dumps([asdict(row) for row in rows]))
        return
    for row in rows:
        typer.echo(
            f"node {row.node}: sent {row.sent_bytes:,} bytes in {row.sent_packets:,} packets, "
            f"received {row.received_bytes:,} in {row.received_packets:,}"
        )


@app.command()
def down(name: Name = "default") -> None:
    """End the testbed and everything that runs in it."""
    from pdtlib.testbed import cluster

    with told():
        typer.echo("the testbed is gone" if cluster.down(name) else f"no testbed {name!r} was up")
