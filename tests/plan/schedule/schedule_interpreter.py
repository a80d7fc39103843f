"""A machine of several ranks in plain Python that obeys a lowered table, and the model that it trains.

Position k of the model computes y = x^2 + w_k x modulo a prime, so that every number is exact: one wrong,
missing or doubled action changes a gradient. A rank is a generator that stops at each message; a send waits
until its peer stands at the matching receive.
"""

from collections import Counter

PRIME = 2_147_483_647


class Position:
    """One piece of the model: its weight and the gradient so far."""

    def __init__(self, weight):
        self.weight, self.gradient = weight, 0

    def forward(self, x):
        return (x * x + self.weight * x) % PRIME

    def backward_input(self, x, grad):
        return grad * (2 * x + self.weight) % PRIME

    def backward_weight(self, x, grad):
        self.gradient = (self.gradient + grad * x) % PRIME


def loss_gradient(y, target):
    """Of (y - target)^2 / 2."""
    return (y - target) % PRIME


def train_alone(weights, inputs, targets):
    """(weight gradients, input gradients, outputs), one micro-batch after another."""
    positions = [Position(weight) for weight in weights]
    input_gradients, outputs = [], []
    for x, target in zip(inputs, targets, strict=True):
        saved = []
        for position in positions:
            saved.append(x)
            x = position.forward(x)
        outputs.append(x)
        grad = loss_gradient(x, target)
        for position, x in zip(reversed(positions), reversed(saved), strict=True):
            position.backward_weight(x, grad)
            grad = position.backward_input(x, grad)
        input_gradients.append(grad)
    return [position.gradient for position in positions], input_gradients, outputs


class Rank:
    """Obeys its program and decides nothing: one method an operation, and a place for what is in flight."""

    def __init__(self, lowered, rank, weights, inputs, targets):
        self.lowered, self.rank, self.inputs, self.targets = lowered, rank, inputs, targets
        self.layout = lowered.schedule.layout
        self.deferred = lowered.schedule.deferred[rank]
        self.chunks = [Position(weights[self.layout.position(rank, c)]) for c in range(self.layout.chunks)]
        self.activations, self.gradients = {}, {}  # (micro-batch, chunk) -> what came in, to be used once
        self.saved, self.owed = {}, {}  # inputs kept for the backward; (input, gradient) kept for W
        self.outbox, self.outputs, self.input_gradients = {}, {}, {}
        self.most_saved = 0

    def run(self):
        for act in self.lowered.programs[self.rank]:
            if act.op in ("SF", "SB"):
                yield act, self.outbox.pop(act)
            elif act.op in ("RF", "RB"):
                value = yield act, None
                box = self.activations if act.op == "RF" else self.gradients
                assert (act.micro_batch, act.chunk) not in box
                box[act.micro_batch, act.chunk] = value
            else:
                getattr(self, f"_{act.op}")(act)
            self.most_saved = max(self.most_saved, len(self.saved) + len(self.owed))

    def _hand_on(self, op, act, place, value):
        """To the next chunk if it is this rank's own, else into the outbox of the send that must follow."""
        if place[0] == self.rank:
            box = self.activations if op == "F" else self.gradients
            box[act.micro_batch, place[1]] = value
        else:
            self.outbox[type(act)(f"S{op}", act.micro_batch, act.chunk)] = value

    def _F(self, act):
        key = act.micro_batch, act.chunk
        first = self.layout.before(self.rank, act.chunk) is None
        x = self.inputs[act.micro_batch] if first else self.activations.pop(key)
        self.saved[key] = x
        y = self.chunks[act.chunk].forward(x)
        after = self.layout.after(self.rank, act.chunk)
        if after is None:
            self.outputs[act.micro_batch] = y
            self.gradients[key] = loss_gradient(y, self.targets[act.micro_batch])
        else:
            self._hand_on("F", act, after, y)

    def _B(self, act):
        key = act.micro_batch, act.chunk
        x, grad = self.saved.pop(key), self.gradients.pop(key)
        chunk = self.chunks[act.chunk]
        if key in self.deferred:
            self.owed[key] = x, grad
        else:
            chunk.backward_weight(x, grad)
        passed_on = chunk.backward_input(x, grad)
        before = self.layout.before(self.rank, act.chunk)
        if before is None:
            self.input_gradients[act.micro_batch] = passed_on
        else:
            self._hand_on("B", act, before, passed_on)

    def _W(self, act):
        self.chunks[act.chunk].backward_weight(*self.owed.pop((act.micro_batch, act.chunk)))


def train_together(lowered, weights, inputs, targets):
    """The same as :func:`train_alone`, by all ranks of ``lowered``; also each rank's most saved activations.

    Raises AssertionError if the ranks stop for ever or leave something behind.
    """
    ranks = [Rank(lowered, r, weights, inputs, targets) for r in range(lowered.schedule.stages)]
    running = {rank.rank: rank.run() for rank in ranks}
    standing = {}

    def advance(number, value=None):
        try:
            standing[number] = running[number].send(value)
        except StopIteration:
            del running[number]
            standing.pop(number, None)

    for number in list(running):
        advance(number)
    messages = Counter()
    while running:
        for number, (act, value) in sorted(standing.items()):
            peer = lowered.peer(number, act)
            if act.op[0] == "S" and peer in standing and is_end(lowered, number, act, *standing[peer]):
                messages[act.op] += 1
                advance(number)
                advance(peer, value)
                break
        else:
            raise AssertionError(f"nobody can go on: {standing}")
    for rank in ranks:
        left = [rank.activations, rank.gradients, rank.saved, rank.owed, rank.outbox]
        assert not any(left), f"rank {rank.rank} is left with {left}"
    gradients = [0] * lowered.schedule.layout.length
    for rank in ranks:  # the two copies of a two-way pipeline are summed, as their all-reduce would
        for chunk, position in enumerate(rank.chunks):
            at = rank.layout.position(rank.rank, chunk)
            gradients[at] = (gradients[at] + position.gradient) % PRIME
    merged = [{}, {}]
    for rank in ranks:
        merged[0].update(rank.input_gradients)
        merged[1].update(rank.outputs)
    count = len(inputs)
    return (
        gradients,
        [merged[0][i] for i in range(count)],
        [merged[1][i] for i in range(count)],
        [rank.most_saved for rank in ranks],
        messages,
    )


def is_end(lowered, sender, send, receive, _):
    """Whether the receive at which the peer stands belongs to this send."""
    peer = lowered.peer(sender, send)
    return (
        receive.op == f"R{send.op[1]}"
        and receive.micro_batch == send.micro_batch
        and lowered.peer(peer, receive) == sender
    )
