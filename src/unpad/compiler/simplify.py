"""Rewrites of a step before its derivative is taken: fewer and larger products, shorter loops.

Each is a pure function from a step to a step with the same meaning; sums are reordered, so results
may differ in the last bit from the order in which the cell was written.

- `split_products`: x and state joined before a product (TensorFlow's form) are multiplied apart, so
  that the part of x leaves the loop.
- `merge_products`: products of one vector with several matrices become one product.
- `gather_sums`: of a sum, what is shared is added once a run, what depends on x before the loop.
- `lift_sums`: gates added column by column are added at once, so that a product starts from them.
- `merge_columns`: one function of neighbouring columns is one call.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from unpad.compiler.once import Call, Once, OnceRef, once_refs
from unpad.compiler.ops import OPERATIONS
from unpad.compiler.step import Graph, Node, Step, uses

Rewrite = Callable[["_Rebuild", int, Node], "int | None"]
SHARED, X, STATE = 0, 1, 2


def simplify(step: Step, once: Once) -> tuple[Step, Once]:
    """All rewrites, then only what is still used."""
    for rewrite in (split_products, merge_products, gather_sums, lift_sums, merge_columns):
        step = rewrite(step, once)
    return _compact(step, once)


@dataclass
class _Rebuild:
    """A step written anew, node by node."""

    old: Step
    once: Once
    graph: Graph = field(default_factory=Graph)
    number: dict[int, int] = field(default_factory=dict)

    def run(self, rewrite: Rewrite) -> Step:
        for number in self.old.needed():
            node = self.old.graph[number]
            self.graph.source = self.old.graph.where.get(number, "")
            new = rewrite(self, number, node)
            self.number[number] = self.same(node) if new is None else new
        self.graph.source = ""
        return replace(
            self.old,
            graph=self.graph,
            output=self.number[self.old.output],
            states=[self.number[n] for n in self.old.states],
        )

    def same(self, node: Node) -> int:
        args = tuple(self.number[a] for a in node.args)
        if node.op == "slice":
            return self.graph.slice(args[0], node.dims[0], node.width)
        if node.op == "concat":
            return self.graph.concat(args)
        return self.graph.add(replace(node, args=args))

    def matrix(self, ref: OnceRef, shape: tuple[int, int]) -> int:
        self.once.matrices.append(ref)
        self.old.matrices.append(shape)
        return len(self.old.matrices) - 1

    def shared(self, ref: OnceRef, width: int) -> int:
        self.once.shared.append(ref)
        self.old.shared_widths.append(width)
        return self.graph.leaf("shared", width, len(self.old.shared_widths) - 1)


def _classes(graph: Graph) -> list[int]:
    """For each node what it depends on at most: shared values, x, or a state."""
    found: list[int] = []
    for node in graph.nodes:
        if node.op in ("shared", "const"):
            found.append(SHARED)
        elif node.op == "state":
            found.append(STATE)
        elif not node.args:
            found.append(X)
        else:
            floor = X if node.op == "linear" else SHARED
            found.append(max([floor, *(found[a] for a in node.args)]))
    return found


def _use_counts(step: Step) -> Counter[int]:
    counts: Counter[int] = Counter([step.output, *step.states])
    for number in step.needed():
        counts.update(step.graph[number].args)
    return counts


# -- products --------------------------------------------------------------------------------------


def split_products(step: Step, once: Once) -> Step:
    """Multiply the parts of a joined row apart where some depend on a state and some do not."""
    classes = _classes(step.graph)

    def rewrite(new: _Rebuild, number: int, node: Node) -> int | None:
        if node.op != "linear" or step.graph[node.args[0]].op != "concat":
            return None
        parts = step.graph[node.args[0]].args
        if len({classes[p] == STATE for p in parts}) < 2:
            return None
        total, at = None, 0
        for group in _runs(list(parts), lambda p: classes[p] == STATE):
            joined = new.graph.concat(new.number[p] for p in group)
            width = new.graph[joined].width
            rows = once.call(torch.narrow, once.matrices[node.index // 2], 0, at, width)
            product = new.graph.linear(joined, new.matrix(rows, (width, node.width)), node.width)
            total = product if total is None else new.graph.op("add", total, product)
            at += width
        return total

    return _Rebuild(step, once).run(rewrite)


def _runs(items: list[int], key: Callable[[int], bool]) -> list[list[int]]:
    runs: list[list[int]] = []
    for item in items:
        if runs and key(runs[-1][0]) == key(item):
            runs[-1].append(item)
        else:
            runs.append([item])
    return runs


def merge_products(step: Step, once: Once) -> Step:
    """Where all of them, or none, feed a state: the others would be pulled into the loop."""
    graph = step.graph
    feeding = set(uses(graph, step.states))
    groups: dict[tuple[int, bool], list[int]] = defaultdict(list)
    for number in step.needed():
        if graph[number].op == "linear":
            groups[graph[number].args[0], number in feeding].append(number)
    slices: dict[int, tuple[int, int]] = {}
    wholes: dict[int, int] = {}
    first = {members[0]: members for members in groups.values() if len(members) > 1}
    member_of = {m: members[0] for members in first.values() for m in members}

    def rewrite(new: _Rebuild, number: int, node: Node) -> int | None:
        if number not in member_of:
            return None
        head = member_of[number]
        if head == number:
            refs = [once.matrices[graph[m].index // 2] for m in first[head]]
            widths = [graph[m].width for m in first[head]]
            rows = graph[node.args[0]].width
            matrix = new.matrix(_side_by_side(once, refs), (rows, sum(widths)))
            wholes[head] = new.graph.linear(new.number[node.args[0]], matrix, sum(widths))
            starts = [sum(widths[:i]) for i in range(len(widths))]
            slices.update(zip(first[head], zip(starts, widths, strict=True), strict=True))
        return new.graph.slice(wholes[head], *slices[number])

    return _Rebuild(step, once).run(rewrite)


def _side_by_side(once: Once, matrices: list[OnceRef]) -> OnceRef:
    """Matrices in a row; of transposed ones their sources in a column, and one transposition."""
    flips = _flips(once)
    if not all(ref.number in flips for ref in matrices):
        return once.call(torch.cat, matrices, 1)
    return once.call(torch.t, once.join(*[flips[ref.number] for ref in matrices]))


# -- sums ------------------------------------------------------------------------------------------


def gather_sums(step: Step, once: Once) -> Step:
    """Add up the terms of a sum from what is known first to what is known last: a product, matrix
    or elementwise, then starts from what comes before it.
    """
    graph, counts, classes = step.graph, _use_counts(step), _classes(step.graph)
    inner = {
        arg
        for number in step.needed()
        if graph[number].op == "add"
        for arg in graph[number].args
        if graph[arg].op == "add" and counts[arg] == 1 and graph[arg].width == graph[number].width
    }

    def terms(number: int) -> list[int]:
        return [t for arg in graph[number].args for t in (terms(arg) if arg in inner else [arg])]

    def rewrite(new: _Rebuild, number: int, node: Node) -> int | None:
        if node.op != "add" or number in inner:
            return None
        found = terms(number)
        if not any(_is_product(graph, t) or graph[t].op == "mul" for t in found):
            return None
        shared = [t for t in found if graph[t].op == "shared"]
        rest = [t for t in found if t not in shared]
        rest.sort(key=lambda t: (classes[t], not _is_product(graph, t)))
        ordered = [new.number[t] for t in rest]
        if shared:
            ordered.insert(1, _shared_sum(new, graph, shared))
        total = ordered[0]
        for term in ordered[1:]:
            total = new.graph.op("add", total, term, width=node.width)
        return total

    return _Rebuild(step, once).run(rewrite)


def _is_product(graph: Graph, number: int) -> bool:
    node = graph[number]
    return node.op == "linear" or (node.op == "slice" and graph[node.args[0]].op == "linear")


def _shared_sum(new: _Rebuild, graph: Graph, shared: list[int]) -> int:
    if len(shared) == 1:
        return new.number[shared[0]]
    refs = [new.once.shared[graph[term].index] for term in shared]
    widths = {graph[term].width for term in shared}
    if len(widths) == 1:
        return new.shared(new.once.sum(*refs), widths.pop())
    total, *rest = refs
    for ref in rest:
        total = new.once.call(torch.add, total, ref)
    return new.shared(total, max(widths))


def lift_sums(step: Step, once: Once) -> Step:
    """add(slice(P, r), z_r) for all columns r of a product P: slice(add(P, all z), r)."""
    for rank in (X, STATE):  # the biases of the products of x, then these as the start of h's
        step = _lift(step, once, rank)
    return step


def _lift(step: Step, once: Once, rank: int) -> Step:
    graph, counts, classes = step.graph, _use_counts(step), _classes(step.graph)
    readers: dict[int, list[int]] = defaultdict(list)
    for number in step.needed():
        for arg in graph[number].args:
            readers[arg].append(number)
    lifted: dict[int, tuple[int, int]] = {}
    plans: dict[int, list[tuple[int, int]]] = {}
    for base in step.needed():
        plan = _plan(graph, counts, classes, readers, base) if classes[base] == rank else None
        if plan is not None and not any(a in lifted for _, a in plan):
            last = max(a for _, a in plan)
            plans[last] = plan
            lifted.update({a: (base, s) for s, a in plan})

    # An add can be replaced only when all its group's operands are known: at the last of them.
    waiting = {a: last for last, plan in plans.items() for _, a in plan}
    if any(set(uses(graph, [x])) & (set(waiting) - {x}) for x in waiting):
        return step  # one gate feeds another: they cannot start together

    sums: dict[int, int] = {}

    def rewrite(new: _Rebuild, number: int, node: Node) -> int | None:
        if number not in waiting:
            return None
        last = waiting[number]
        base = graph[plans[last][0][0]].args[0]
        if last not in sums:
            others = [_other(graph, a, s) for s, a in plans[last]]
            for other in others:
                _force(new, other, rewrite)
            if all(graph[o].op == "shared" for o in others):
                refs = [once.shared[graph[o].index] for o in others]
                joined = new.shared(once.join(*refs), graph[base].width)
            else:
                joined = new.graph.concat(new.number[o] for o in others)
            sums[last] = new.graph.op("add", new.number[base], joined)
        start = graph[next(s for s, a in plans[last] if a == number)].dims[0]
        return new.graph.slice(sums[last], start, node.width)

    return _Rebuild(step, once).run(rewrite)


def _force(new: _Rebuild, number: int, rewrite: Rewrite) -> None:
    """Write a node and what it needs ahead of its turn."""
    for needed in uses(new.old.graph, [number]):
        if needed not in new.number:
            node = new.old.graph[needed]
            written = rewrite(new, needed, node)
            new.number[needed] = new.same(node) if written is None else written


def _other(graph: Graph, add: int, piece: int) -> int:
    a, b = graph[add].args
    return b if a == piece else a


def _plan(
    graph: Graph,
    counts: Counter[int],
    classes: list[int],
    readers: dict[int, list[int]],
    base: int,
) -> list[tuple[int, int]] | None:
    """(slice, add) for disjoint columns that cover a product or its sum, else None."""
    node = graph[base]
    is_sum = node.op == "add" and any(graph[a].op == "linear" for a in node.args)
    if node.op != "linear" and not is_sum:
        return None
    pieces = readers[base]
    if len(pieces) < 2 or counts[base] != len(pieces):
        return None
    plan: list[tuple[int, int]] = []
    at = 0
    for piece in sorted(pieces, key=lambda p: graph[p].dims[:1]):
        part = graph[piece]
        if part.op != "slice" or part.dims[0] != at or counts[piece] != 1:
            return None
        (add,) = readers[piece]
        if graph[add].op != "add":
            return None
        other = _other(graph, add, piece)
        if classes[other] >= classes[base] or graph[other].width != part.width:
            return None
        plan.append((piece, add))
        at += part.width
    return plan if at == node.width else None


def merge_columns(step: Step, once: Once) -> Step:
    """Call a function once for neighbouring columns."""
    graph = step.graph
    by_base: dict[tuple[str, int], list[int]] = defaultdict(list)
    for number in step.needed():
        node = graph[number]
        operation = OPERATIONS.get(node.op)
        unary = operation is not None and operation.elementwise and operation.arity == 1
        if unary and graph[node.args[0]].op == "slice":
            by_base[node.op, graph[node.args[0]].args[0]].append(number)
    place: dict[int, tuple[int, int, int]] = {}
    for members in by_base.values():
        members.sort(key=lambda m: graph[graph[m].args[0]].dims[0])
        for run in _neighbours(graph, members):
            start = graph[graph[run[0]].args[0]].dims[0]
            width = sum(graph[m].width for m in run)
            place.update({m: (start, width, graph[graph[m].args[0]].dims[0]) for m in run})

    def rewrite(new: _Rebuild, number: int, node: Node) -> int | None:
        if number not in place:
            return None
        start, width, mine = place[number]
        base = new.number[graph[node.args[0]].args[0]]
        whole = new.graph.op(node.op, new.graph.slice(base, start, width))
        return new.graph.slice(whole, mine - start, node.width)

    return _Rebuild(step, once).run(rewrite)


def _neighbours(graph: Graph, members: list[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for member in members:
        start = graph[graph[member].args[0]].dims[0]
        if runs:
            last = graph[graph[runs[-1][-1]].args[0]]
            if last.dims[0] + last.width == start:
                runs[-1].append(member)
                continue
        runs.append([member])
    return [run for run in runs if len(run) > 1]


# -- what is left ----------------------------------------------------------------------------------


def _compact(step: Step, once: Once) -> tuple[Step, Once]:
    """Matrices, vectors and once-calls that nothing uses any more are dropped."""
    needed = [step.graph[n] for n in step.needed()]
    matrices = sorted({n.index // 2 for n in needed if n.op == "linear"})
    shared = sorted({n.index for n in needed if n.op == "shared"})

    def rewrite(new: _Rebuild, number: int, node: Node) -> int | None:
        if node.op == "linear":
            return new.graph.linear(
                new.number[node.args[0]], matrices.index(node.index // 2), node.width
            )
        if node.op == "shared":
            return new.graph.leaf("shared", node.width, shared.index(node.index))
        return None

    compacted = _Rebuild(step, once).run(rewrite)
    compacted.matrices = [step.matrices[m] for m in matrices]
    compacted.shared_widths = [step.shared_widths[s] for s in shared]
    kept = Once(once.leaves, count=once.count)
    kept.count = once.count
    kept.matrices = [once.matrices[m] for m in matrices]
    compacted.flipped = _unflip(once, kept.matrices)
    kept.shared = [once.shared[s] for s in shared]
    kept.pieces = {
        ref: once.pieces[ref] for ref in (*kept.matrices, *kept.shared) if ref in once.pieces
    }
    kept.calls = _needed_calls(once, kept.terms())
    return compacted, kept


def _unflip(once: Once, matrices: list[OnceRef]) -> set[int]:
    """Take W instead of t(W), which a product reads as well; the numbers of these matrices."""
    flips = _flips(once)
    flipped = {m for m, ref in enumerate(matrices) if ref.number in flips}
    for m in flipped:
        matrices[m] = flips[matrices[m].number]
    return flipped


def _flips(once: Once) -> dict[int, OnceRef]:
    """W by the number of t(W)."""
    return {
        call[3][0]: call[1][0]
        for call in once.calls
        if getattr(call[0], "__name__", "") in ("t", "t.default")
        and isinstance(call[1][0], OnceRef)
    }


def _needed_calls(once: Once, wanted: list[OnceRef]) -> list[Call]:
    numbers = {ref.number for ref in wanted}
    kept: list[Call] = []
    for call in reversed(once.calls):
        if numbers & set(call[3]):
            kept.append(call)
            numbers |= {ref.number for ref in once_refs((call[1], call[2]))}
    return kept[::-1]
