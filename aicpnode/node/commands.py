"""The commands of a running node: what the prompt, the command line and other tools can ask of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from aicpnode.errors import UserError
from aicpnode.events import BlockDecided, InnerStep, Notice, PhaseReached, ProposalJudged, RoundApplied, Subscription
from aicpnode.interfaces.control import Emit, JsonObject
from aicpnode.node import report
from aicpnode.node.governance import GovernanceCommands
from aicpnode.replication.intent import WITHOUT_END

if TYPE_CHECKING:
    from aicpnode.node.node import Node
    from aicpnode.node.role import TrainingRole

GENERATE_TOKENS_MAX = 1_000_000
TEST_ROUNDS_WAITED = 4
"""The test of a round gives up after so many round lengths: by then ``why`` knows the reason."""
TEST_MARGIN_S = 20.0
TEST_CATCH_UP_S = 10.0
PROBE_LIMIT_S = 30.0
INTEGER_MAX = (1 << 53) - 1
"""What every JSON reader keeps exactly."""


class NodeCommands:
    """Registers everything on the node's surface."""

    def __init__(self, node: Node) -> None:
        self._node = node
        surface = node.surface
        surface.register("status", self._status, help="where ledger, model and training stand")
        surface.register("stats", self._status, help="the same as status")
        surface.register("why", self._why, help="what this node waits for")
        surface.register("peers", self._peers, help="connected peers")
        surface.register("members", self._members, help="the roster")
        surface.register("health", self._health, help="the checks this node makes of itself")
        surface.register("rounds", self._rounds, help="figures of past rounds")
        surface.register("train", self._train, help="contribute to training")
        surface.register("stop", self._stop_training, help="stop contributing")
        surface.register_stream("test", self._test, help="run one agreed round and report on it")
        surface.register("checkpoint", self._checkpoint, help="write a checkpoint")
        surface.register_stream("generate", self._generate, help="continue a text")
        surface.register("evaluate", self._evaluate, help="validation loss of the agreed model")
        surface.register("probe", self._probe, help="have the members decide an operation that changes nothing")
        surface.register("quit", self._quit, help="stop the node")

    async def _status(self, args: JsonObject) -> JsonObject:
        return report.status(self._node)

    async def _why(self, args: JsonObject) -> JsonObject:
        return report.why(self._node)

    async def _peers(self, args: JsonObject) -> JsonObject:
        return report.peers(self._node)

    async def _members(self, args: JsonObject) -> JsonObject:
        return report.members(self._node)

    async def _health(self, args: JsonObject) -> JsonObject:
        return report.health(self._node)

    async def _rounds(self, args: JsonObject) -> JsonObject:
        return {"rounds": await self._node.rounds.stored(_integer(args, "from", 0))}

    async def _probe(self, args: JsonObject) -> JsonObject:
        """Repeats what the ledger says of this member's contribution, and waits until that is decided."""
        node = self._node
        limit_s = _number(args, "limit_s", PROBE_LIMIT_S)
        began = trio.current_time()
        with trio.move_on_after(limit_s):
            height = await node.driver.probe()
            return {"height": height, "ms": 1000 * (trio.current_time() - began)}
        raise UserError(f"Nothing was decided within {limit_s:g} s. {report.why(node)['summary']}", advice="See why.")

    async def _quit(self, args: JsonObject) -> JsonObject:
        if args.get("stop") is not True:
            raise UserError("quit stops the whole node.", advice='Say {"stop": true} if that is meant.')
        self._node.stop()
        return {"stopping": True}

    # ---- training

    async def _train(self, args: JsonObject) -> JsonObject:
        node = self._node
        rounds = args.get("rounds")
        until = WITHOUT_END
        if rounds is not None:
            until = min(WITHOUT_END, node.driver.ledger.round + _integer(args, "rounds", 1, lowest=1))
        await node.train(until)
        return self._contribution("the ledger decides it within a second; others that follow join in")

    async def _stop_training(self, args: JsonObject) -> JsonObject:
        node = self._node
        await node.stop_training()
        others = [m.name for m in node.driver.ledger.contributors() if m.key != node.identity.key]
        note = "nobody else contributes"
        if others:
            note = f"{', '.join(others)} decide for themselves; those that followed this node stop with it"
        return self._contribution(note)

    def _contribution(self, note: str) -> JsonObject:
        node = self._node
        intent = node.driver.intent
        return {
            "contributing": intent.wish.name == "ON",
            "until_round": node.shown_until(intent.until_round),
            "note": note,
        }

    async def _test(self, args: JsonObject, emit: Emit) -> JsonObject:
        """One agreed gradient round, from now to the new model hash, as it happens."""
        node = self._node
        if node.is_loaded:
            # A node that has just decided a round is behind until it is applied: that takes no time worth a refusal.
            with trio.move_on_after(TEST_CATCH_UP_S):
                while node.driver.is_behind:
                    await node.driver.wait_change()
        if node.driver.is_behind or not node.is_loaded:
            raise UserError("This node is not caught up yet.", advice="Ask again in a moment; see why.")
        subscription = node.bus.subscribe()
        try:
            round_number = node.driver.ledger.round
            if not node.driver.ledger.contributors():
                await node.train(round_number + 1)
            else:
                # The running round may be half over: the next one is seen from its beginning.
                round_number += 1
            limit_s = TEST_ROUNDS_WAITED * node.driver.ledger.rules.round_ms / 1000 + TEST_MARGIN_S
            before = node.model_hash_hex
            with trio.move_on_after(limit_s):
                return await self._watch_round(round_number, before, subscription, emit)
        finally:
            node.bus.unsubscribe(subscription)
        reason = report.why(node)["summary"]
        raise UserError(f"Round {round_number} was not decided within {limit_s:.0f} s. {reason}", advice="See why.")

    async def _watch_round(
        self, round_number: int, before: str | None, subscription: Subscription, emit: Emit
    ) -> JsonObject:
        node = self._node
        began = trio.current_time()
        phases: list[JsonObject] = []
        height = 0
        async for event in subscription:
            elapsed_ms = 1000 * (trio.current_time() - began)
            match event:
                case InnerStep(round=seen, step=1) if seen == round_number:
                    phases.append({"name": "training", "ms": elapsed_ms})
                    await emit({"phase": "training", "detail": f"{event.steps} inner steps", "ms": elapsed_ms})
                case PhaseReached(round=seen, member=b"") if seen == round_number:
                    phases.append({"name": event.phase, "ms": elapsed_ms})
                    await emit({"phase": event.phase, "detail": event.detail, "ms": elapsed_ms})
                case PhaseReached(round=seen) if seen == round_number and event.phase.endswith(("sent", "received")):
                    detail = f"{node.name_of(event.member)}, height {event.height}, {event.detail}"
                    await emit({"phase": event.phase, "detail": detail, "ms": elapsed_ms})
                case ProposalJudged(round=seen) if seen == round_number:
                    reason = f": {event.reason}" if event.reason else ""
                    detail = f"{node.name_of(event.author)} {event.verdict}{reason}"
                    await emit({"phase": "verdict", "detail": detail, "ms": elapsed_ms})
                case BlockDecided(training_round=seen) if seen == round_number:
                    height = event.height
                    phases.append({"name": "decided", "ms": elapsed_ms})
                    await emit({"phase": "decided", "detail": f"height {height}, view {event.view}", "ms": elapsed_ms})
                case RoundApplied(round=seen) if seen == round_number - 1:
                    before = event.model_hash.hex()
                case RoundApplied(round=seen) if seen == round_number:
                    phases.append({"name": "applied", "ms": elapsed_ms})
                    votes = await trio.to_thread.run_sync(node.driver.votes_of, event.height)
                    return {
                        "round": round_number,
                        "height": event.height,
                        "votes": votes,
                        "phases": phases,
                        "included": event.included,
                        "model_hash_before": before,
                        "model_hash_after": event.model_hash.hex(),
                    }
                case Notice(level="error" | "warning"):
                    await emit({"phase": "notice", "detail": event.text, "ms": elapsed_ms})
        raise AssertionError("a subscription ends only when it is given up")

    # ---- the model

    def _role(self, what: str) -> TrainingRole:
        node = self._node
        if node.role is not None:
            return node.role
        if not node.config.trains:
            raise UserError(
                f"{what} needs torch, which a {node.config.node_type.value} node does not load.",
                advice="Ask a full or training node.",
            )
        raise UserError(f"{what} is possible once the model and the data are here.", advice=f"Now: {node.phase}.")

    async def _checkpoint(self, args: JsonObject) -> JsonObject:
        node = self._node
        path = await self._role("A checkpoint").checkpoint()
        return {
            "path": str(path),
            "round": node.driver.ledger.round,
            "height": node.driver.applied_height,
            "model_hash": node.model_hash_hex,
        }

    async def _evaluate(self, args: JsonObject) -> JsonObject:
        evaluation, bigram = await self._role("An evaluation").evaluate(_integer(args, "tokens", 0))
        return {"val_loss": evaluation.loss, "bigram_loss": bigram, "tokens": evaluation.tokens}

    async def _generate(self, args: JsonObject, emit: Emit) -> JsonObject:
        role = self._role("Generating")
        from aicpnode.model.generate import Sampling
        from aicpnode.model.tokenizer import StreamDecoder

        node = self._node
        sampling = Sampling(
            temperature=_number(args, "temperature", 0.8),
            top_k=_integer(args, "top_k", 0),
            top_p=_number(args, "top_p", 1.0),
            seed=_integer(args, "seed", 0, lowest=-(1 << 62)),
        )
        prompt = args.get("prompt", "")
        if not isinstance(prompt, str):
            raise UserError("prompt is a text.")
        tokens = _integer(args, "tokens", 200)
        if tokens > GENERATE_TOKENS_MAX:
            raise UserError(f"{tokens} tokens are too many.", advice=f"At most {GENERATE_TOKENS_MAX}.")
        round_number, model_hash = node.driver.ledger.round, node.model_hash_hex
        decoder, text, made, began = StreamDecoder(), "", 0, trio.current_time()
        async for piece in role.generate(prompt.encode(), tokens, sampling):
            made += len(piece)
            said = decoder.feed(piece)
            text += said
            if said:
                await emit({"text": said})
        if rest := decoder.finish():
            text += rest
            await emit({"text": rest})
        seconds = max(trio.current_time() - began, 1e-9)
        return {"text": text, "tokens_per_s": made / seconds, "model_hash": model_hash, "round": round_number}


def register(node: Node) -> None:
    """Put every command on ``node.surface``."""
    NodeCommands(node)
    GovernanceCommands(node)


def _integer(args: JsonObject, name: str, default: int, *, lowest: int = 0) -> int:
    value: Any = args.get(name, default)
    if type(value) is not int or not lowest <= value <= INTEGER_MAX:
        raise UserError(f"{name} is a whole number from {lowest} to {INTEGER_MAX}.")
    return value


def _number(args: JsonObject, name: str, default: float) -> float:
    value: Any = args.get(name, default)
    if type(value) not in (int, float) or not abs(value) <= INTEGER_MAX:
        raise UserError(f"{name} is a number.")
    return float(value)
