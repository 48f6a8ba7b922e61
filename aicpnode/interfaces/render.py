"""Command results as people read them: used by the prompt and by the command line, never by programs.

Each function takes the result object of one command (see ``control``) and returns something rich can print. Values
that a node does not know (yet) are shown as a dash, never as a guess.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from aicpnode.envelop.records import is_seen
from aicpnode.interfaces.control import JsonObject

UNKNOWN = "–"
SHORT_HASH_DIGITS = 12


def render(command: str, result: JsonObject) -> RenderableType:
    """The result of ``command`` as a rich renderable; commands without a form of their own as name and value."""
    return _RENDERERS.get(command, render_plain)(result)


def render_plain(result: JsonObject) -> RenderableType:
    """Name and value, one a line."""
    return _pairs([(key, _text(value)) for key, value in result.items() if value is not None])


def render_status(result: JsonObject) -> RenderableType:
    """What this node is, where the ledger and the model stand, and what it contributes."""
    roster, training = result.get("roster") or {}, result.get("training") or {}
    proposals = result.get("proposals") or {}
    rows = [
        ("node", f"{_text(result.get('node_id'))}  key {short(result.get('key'))}  {_text(result.get('node_type'))}"),
        (
            "network",
            f"{short(result.get('network'))}  at {_text(result.get('p2p'))}, {_text(result.get('peers'))} peers",
        ),
        ("state", _state(result)),
        ("height", f"{_text(result.get('height'))}  view {_text(result.get('view'))}  {_text(result.get('step'))}"),
        ("round", f"{_text(result.get('round'))}  model {short(result.get('model_hash'))}"),
        ("roster", render_roster(roster)),
        ("training", _training(training)),
        (
            "proposals",
            f"{_text(proposals.get('accepted'))} accepted, {_text(proposals.get('refused'))} refused; "
            f"mine {_text(proposals.get('mine_accepted'))} and {_text(proposals.get('mine_refused'))}",
        ),
        (
            "decisions",
            f"p50 {_number(result.get('decision_ms_p50'), 0)} ms, p99 {_number(result.get('decision_ms_p99'), 0)} ms",
        ),
        (
            "wire",
            f"{size(result.get('wire_bytes_sent'))} sent, {size(result.get('wire_bytes_received'))} received",
        ),
        ("memory", f"{_number(result.get('rss_mb'), 0)} MiB   up {duration(result.get('uptime_s'))}"),
    ]
    refused = [entry for entry in proposals.get("last") or [] if entry.get("verdict") == "no"]
    rows += [
        ("refused", f"round {_text(e.get('round'))} by {_text(e.get('name'))}: {_text(e.get('reason'))}")
        for e in refused[-3:]
    ]
    return _pairs(rows)


def render_roster(roster: JsonObject) -> str:
    """How many members vote, what a quorum is, and how many failures the roster tolerates."""
    if not roster:
        return UNKNOWN
    tolerates = roster.get("tolerates")
    return (
        f"{_text(roster.get('active'))} active, quorum {_text(roster.get('quorum'))} of {_text(roster.get('power'))}, "
        f"tolerates {'no failure' if tolerates == 0 else _text(tolerates)}"
    )


def render_why(result: JsonObject) -> RenderableType:
    """What the node waits for, on whom, for how long, and what happens next."""
    table = _table("waiting for", "on", "since", "next")
    for wait in result.get("waits") or []:
        who = ", ".join(_text(name) for name in wait.get("who") or []) or UNKNOWN
        table.add_row(_text(wait.get("what")), who, duration(wait.get("since_s")), _text(wait.get("next")))
    parts: list[RenderableType] = [Text(printable(str(result.get("summary", ""))), style="bold")]
    if table.row_count:
        parts.append(table)
    parts.append(Text(f"roster: {render_roster(result.get('roster') or {})}"))
    return Group(*parts)


def render_peers(result: JsonObject) -> RenderableType:
    """Connected peers, and addresses that are being dialled."""
    table = _table("peer", "key", "type", "address", "dialled by", "connected", "rtt", "sent", "received", "height")
    for peer in result.get("peers") or []:
        table.add_row(
            _text(peer.get("name")), short(peer.get("key")), _text(peer.get("node_type")), _text(peer.get("address")),
            "peer" if peer.get("inbound") else "us", duration(peer.get("connected_s")),
            f"{_number(peer.get('rtt_ms'), 1)} ms", size(peer.get("bytes_sent")), size(peer.get("bytes_received")),
            _text(peer.get("head_height")),
        )  # fmt: skip
    parts: list[RenderableType] = [table if table.row_count else Text("No peers are connected.")]
    for dial in result.get("dialing") or []:
        error, again = dial.get("error") or "no answer yet", duration(dial.get("next_try_s"))
        line = f"dialing {dial.get('address')}: {dial.get('attempts')} attempts, {error}, next in {again}"
        parts.append(Text(printable(line)))
    return Group(*parts)


def render_members(result: JsonObject) -> RenderableType:
    """The roster with each member's standing."""
    table = _table("#", "member", "key", "status", "power", "contributes", "last included", "last seen", "connected")
    for member in result.get("members") or []:
        status = _text(member.get("status"))
        probation = member.get("probation")
        if probation:
            status += f" {_text(probation.get('seen'))}/{_text(probation.get('of'))}"
        if member.get("equivocated"):
            status += ", equivocated"
        until = member.get("until_round")
        contributes = "no" if not member.get("contributing") else "yes" if until is None else f"until {until}"
        table.add_row(
            _text(member.get("index")), _text(member.get("name")), short(member.get("key")), status,
            _text(member.get("power")), contributes, _text(member.get("last_included_round")),
            duration(member.get("last_seen_s")), "yes" if member.get("connected") else "no",
        )  # fmt: skip
    return Group(table, Text(f"epoch {_text(result.get('epoch'))}"))


def render_health(result: JsonObject) -> RenderableType:
    """The checks a node makes of itself."""
    table = _table("check", "", "detail")
    for check in result.get("checks") or []:
        ok = Text("ok", style="green") if check.get("ok") else Text("not ok", style="bold red")
        table.add_row(_text(check.get("name")), ok, _text(check.get("detail")))
    verdict = Text("healthy", style="bold green") if result.get("healthy") else Text("not healthy", style="bold red")
    return Group(table, verdict)


def render_rounds(result: JsonObject) -> RenderableType:
    """What each training round brought."""
    table = _table("round", "height", "loss", "validation", "included", "refused", "tokens/s", "seconds", "model")
    for entry in result.get("rounds") or []:
        table.add_row(
            _text(entry.get("round")), _text(entry.get("height")), _number(entry.get("loss"), 3),
            _number(entry.get("val_loss"), 3), _text(entry.get("included")), _text(entry.get("refused")),
            _number(entry.get("tokens_per_s"), 0), _number(entry.get("seconds"), 2), short(entry.get("model_hash")),
        )  # fmt: skip
    return table


def render_test(result: JsonObject) -> RenderableType:
    """One agreed gradient round: who voted what, how long each phase took, and which model came out."""
    votes = _table("member", "ready", "verdicts")
    for vote in result.get("votes") or []:
        entries = ", ".join(f"{e.get('author')}: {e.get('verdict')}" for e in vote.get("entries") or []) or UNKNOWN
        votes.add_row(_text(vote.get("member")), "yes" if vote.get("ready") else "no", _text(entries))
    phases, before = _table("phase", "took ms", "since the start ms"), 0.0
    for phase in result.get("phases") or []:
        at = phase.get("ms")
        known = isinstance(at, int | float)
        phases.add_row(_text(phase.get("name")), _number(at - before if known else None, 1), _number(at, 1))
        before = at if known else before
    return Group(
        Text(f"round {_text(result.get('round'))}: {_text(result.get('included'))} included", style="bold"),
        votes,
        phases,
        Text(f"model {short(result.get('model_hash_before'))} -> {short(result.get('model_hash_after'))}"),
    )


def render_blacklist(result: JsonObject) -> RenderableType:
    """Whom the members banned and why, and against whom there is evidence that they have not decided on yet."""
    table = _table("banned", "key", "reason")
    for member in result.get("banned") or []:
        table.add_row(_text(member.get("name")), short(member.get("key")), _text(member.get("reason")))
    parts: list[RenderableType] = [table if table.row_count else Text("Nobody is banned.")]
    for member in result.get("accused") or []:
        name = _text(member.get("name"))
        parts.append(Text(f"There is evidence against {name}; the members have not decided on it yet."))
    return Group(*parts)


def render_changes(result: JsonObject) -> RenderableType:
    """Run-wide changes that wait for endorsements."""
    table = _table("id", "change", "endorsed by", "power")
    for change in result.get("changes") or []:
        table.add_row(
            _text(change.get("id")), _text(change.get("change")), _text(", ".join(change.get("endorsers") or [])),
            f"{_text(change.get('power'))} of {_text(change.get('needed'))}",
        )  # fmt: skip
    return table if table.row_count else Text("No change waits for endorsements.")


def render_change(result: JsonObject) -> RenderableType:
    """What became of a change that this node endorsed."""
    what = f"{_text(result.get('change'))} ({_text(result.get('id'))})"
    if result.get("in_effect"):
        return Text(f"In effect: {what}.")
    power = f"{_text(result.get('power'))} of {_text(result.get('needed'))}"
    return Text(f"Waiting: {what}, endorsed with power {power}. Others: aicp-node endorse {_text(result.get('id'))}")


def render_inspect(result: JsonObject) -> RenderableType:
    """A run before one joins it; what does not fit this machine stands out."""
    peer = result.get("peer") or {}
    founders = ", ".join(f"{_text(one.get('name'))} ({short(one.get('key'))})" for one in result.get("founders") or [])
    memory, disk = result.get("machine_memory_bytes"), result.get("machine_disk_bytes")
    rows = [
        ("network", _text(result.get("network"))),
        ("run", f"{_text(result.get('name'))}, made {_text(result.get('created'))}"),
        (
            "answered by",
            f"{_text(peer.get('name'))} ({short(peer.get('key'))}) at {_text(result.get('address'))}, "
            f"{_text(peer.get('node_type'))}, at height {_text(peer.get('height'))}",
        ),
        (
            "model",
            f"{_text(result.get('parameters'))} parameters, {_text(result.get('layers'))} layers of width "
            f"{_text(result.get('width'))}, context {_text(result.get('context'))}",
        ),
        ("admission", f"{_text(result.get('admission'))}; a vote after {_text(result.get('probation_rounds'))} rounds"),
        ("founders", founders or UNKNOWN),
        ("to fetch", size(result.get("download_bytes"))),
        ("memory", f"at least {_fits(result.get('memory_bytes'), memory)}; here {size(memory)} are free"),
        (
            "to train",
            f"at least {_fits(result.get('training_memory_bytes'), memory)}, torch and activations not counted",
        ),
        ("disk", f"at least {_fits(result.get('disk_bytes'), disk)}; here {size(disk)} are free"),
        ("checkpoints", f"{size(result.get('checkpoint_bytes'))} each"),
    ]
    return _pairs(rows)


def _fits(needed: Any, there: Any) -> str:
    fits = not isinstance(needed, int) or not isinstance(there, int) or needed <= there
    return size(needed) if fits else f"[red]{size(needed)}, more than there is[/red]"


def short(value: Any) -> str:
    """The first digits of a hash or key in hex."""
    return str(value)[:SHORT_HASH_DIGITS] if value else UNKNOWN


def size(value: Any) -> str:
    """A number of bytes for people."""
    if not isinstance(value, int | float):
        return UNKNOWN
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def duration(value: Any) -> str:
    """A number of seconds for people."""
    if not isinstance(value, int | float):
        return UNKNOWN
    seconds = float(value)
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s"


def printable(text: str) -> str:
    """``text`` without what steers a terminal or cannot be seen, but tab and newline: a model or a peer wrote it."""
    return "".join(char if char in "\n\t" or is_seen(char) else "\N{REPLACEMENT CHARACTER}" for char in text)


def _state(result: JsonObject) -> str:
    if result.get("diverged"):
        return "[bold red]diverged[/]: this node's state differs from the certified one"
    if result.get("paused"):
        return "[bold yellow]paused[/]: no quorum is reachable; ask: why"
    return "[green]running[/]"


def _training(training: JsonObject) -> str:
    if not training.get("available"):
        return "not on this node"
    until = training.get("until_round")
    doing = "stopped" if not training.get("contributing") else "on" if until is None else f"on until round {until}"
    return (
        f"{doing}; loss {_number(training.get('loss'), 3)}, validation {_number(training.get('val_loss'), 3)}, "
        f"{_number(training.get('tokens_per_s'), 0)} tokens/s, step {_text(training.get('inner_step'))} of "
        f"{_text(training.get('inner_steps'))}, {_percent(training.get('share'))} of the time"
    )


def _text(value: Any) -> str:
    return UNKNOWN if value is None else escape(printable(str(value)))


def _number(value: Any, digits: int) -> str:
    return f"{value:.{digits}f}" if isinstance(value, int | float) else UNKNOWN


def _percent(value: Any) -> str:
    return f"{100 * value:.0f} %" if isinstance(value, int | float) else UNKNOWN


def _pairs(rows: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for name, value in rows:
        table.add_row(escape(name), value)
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="cyan", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column)
    return table


_RENDERERS: dict[str, Callable[[JsonObject], RenderableType]] = {
    "status": render_status,
    "stats": render_status,
    "why": render_why,
    "peers": render_peers,
    "members": render_members,
    "health": render_health,
    "rounds": render_rounds,
    "blacklist": render_blacklist,
    "changes": render_changes,
    "propose": render_change,
    "endorse": render_change,
    "test": render_test,
    "inspect": render_inspect,
}
