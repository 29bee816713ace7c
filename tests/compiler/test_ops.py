"""The table of operations: its meaning in torch, its derivatives, and C++'s view of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

import oracle
from engine.native_passes import BULK, Builder, memory_for, op, run_native
from unpad.compiler.differentiate import Needs, differentiate
from unpad.compiler.ops import OPERATIONS, PRODUCTS, Operation
from unpad.compiler.step import Graph, Node, Step
from unpad.engine import native_engine
from unpad.engine.autograd import _StepCell

native = pytest.mark.skipif(
    not native_engine.available(), reason=native_engine.unavailable_reason()
)
LENGTHS = [3, 0, 2]
WIDTH = 12
DIMS = {"normalize": [(1, 12), (3, 4)], "inv_std": [(1, 12), (3, 4)]}
AXES = [(1, 12, 1), (3, 4, 1), (2, 3, 2), (1, 4, 3), (12, 1, 1)]
TABLE = (5, 0, 0, 11, 3)
FOLDS = ("sum", "max")

DOMAIN = {
    **dict.fromkeys(["log", "log2", "sqrt", "rsqrt", "pow"], lambda v: v.abs() + 0.3),
    **dict.fromkeys(["asin", "acos", "atanh", "tan"], lambda v: 0.9 * torch.tanh(v)),
    **dict.fromkeys(
        ["reciprocal", "div", "fmod", "remainder"], lambda v: v + torch.where(v < 0, -0.7, 0.7)
    ),
    "acosh": lambda v: v.abs() + 1.2,
    "log1p": lambda v: v.abs() - 0.5,
}


def values(name: str, shape: tuple[int, ...], *, halves: bool = False) -> Tensor:
    drawn = torch.randn(shape, dtype=torch.float64)
    drawn = (drawn * 2).round() / 2 if halves else drawn
    return DOMAIN.get(name, lambda v: v)(drawn)


def forms(operation: Operation) -> list[tuple[list[int], tuple[int, ...], tuple[int, ...], int]]:
    """(widths of the arguments, dims, table, width of the result) to try."""
    name = operation.name
    if operation.elementwise:
        broadcast = [
            [WIDTH] * i + [1] + [WIDTH] * (operation.arity - i - 1) for i in range(operation.arity)
        ]
        return [
            ([WIDTH] * operation.arity, (), (), WIDTH),
            *((w, (), (), max(w)) for w in broadcast),
        ]
    if name in DIMS:
        return [([WIDTH, 1], d, (), d[0] if name == "inv_std" else WIDTH) for d in DIMS[name]]
    if name in ("normalize_grad", "scaled_normalize_grad"):
        gain = [WIDTH] * (name == "scaled_normalize_grad")
        return [([WIDTH, WIDTH, d[0], *gain], d, (), WIDTH) for d in DIMS["normalize"]]
    if name == "take":
        return [([WIDTH], (), TABLE, len(TABLE))]
    if name == "scatter":
        return [([len(TABLE)], (), TABLE, WIDTH)]
    if name == "expand":
        return [([d[0] * d[2]], d, (), WIDTH) for d in AXES]
    return [([WIDTH], d, (), d[0] * d[2] if name in FOLDS else WIDTH) for d in AXES]


def meaning(operation: Operation, args: list[Tensor], dims, table, width: int) -> Tensor:
    if table:
        return operation.torch(args[0], table, *([width] if operation.name == "scatter" else []))
    return operation.torch(*args, dims) if dims else operation.torch(*args)


@native
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_native_kernel_computes_the_meaning(name: str) -> None:
    operation = OPERATIONS[name]
    for widths, dims, table, width in forms(operation):
        for halves in (False, True):
            b = Builder()
            args = [b.stream(w) for w in widths]
            out = b.stream(width)
            extra = {"table": b.table(*table)} if table else {}
            b.phase(BULK, op(name, out, *args, dims=dims, **extra))
            memory = memory_for(b.build(), LENGTHS, torch.float64)
            for tensor, w in zip(memory.streams, widths, strict=False):
                drawn = values(name, (sum(LENGTHS), w), halves=halves)
                tensor.copy_(drawn.abs() + 0.1 if name in DIMS and w == 1 else drawn)
            inputs = [t.clone() for t in memory.streams[: len(widths)]]
            run_native(b.build(), memory, LENGTHS, torch.float64)
            wanted = meaning(operation, inputs, dims, table, width)
            oracle.assert_close(
                memory.streams[-1], wanted.expand(-1, width), 1e-12, f"{name} {dims}"
            )


def step_of(name: str, widths: list[int], dims, table, width: int) -> Step:
    """A step whose output is the operation of columns of x; eps is a constant."""
    graph = Graph()
    x = graph.leaf("x", sum(widths))
    args, at = [], 0
    for w in widths:
        args.append(graph.slice(x, at, w))
        at += w
    if name in DIMS:
        args[1] = graph.const(0.25)
    if table:
        output = graph.take(args[0], table)
    else:
        output = graph.add(Node(name, tuple(args), width, dims))
    return Step(graph, output, [], [], sum(widths), [], [], [])


@pytest.mark.parametrize("name", [n for n, o in OPERATIONS.items() if o.derivative is not None])
def test_a_derivative_rule_is_autograds_of_the_meaning(name: str) -> None:
    operation = OPERATIONS[name]
    for widths, dims, table, width in forms(operation):
        for halves in (False, True):
            x = values(name, (5, sum(widths)), halves=halves).requires_grad_()
            step = step_of(name, widths, dims, table, width)
            forward = len(step.graph.nodes)
            cell = _StepCell(step, [], [])
            output, _ = cell(x, ())
            weights = torch.randn_like(output)
            (wanted,) = torch.autograd.grad((output * weights).sum(), x, allow_unused=True)
            wanted = torch.zeros_like(x) if wanted is None else wanted
            oracle.assert_close(
                adjoint(step, forward, x.detach(), weights), wanted, 1e-10, f"{name} {dims}"
            )


def adjoint(step: Step, forward: int, x: Tensor, weights: Tensor) -> Tensor:
    """dx by the rules, evaluated with the meanings of the operations that the rules emit."""
    found = differentiate(step, Needs(True, (), (), ()), (), forward).x
    if found is None:
        return torch.zeros_like(x)
    numbers: dict[int, Tensor] = {}
    for number, node in enumerate(step.graph.nodes[: found + 1]):
        args = [numbers[a] for a in node.args]
        if node.op == "x":
            value = x
        elif node.op == "grad_output":
            value = weights
        elif node.op == "const":
            value = x.new_full((len(x), 1), node.value)
        elif node.op == "slice":
            value = args[0][:, node.dims[0] : node.dims[0] + node.width]
        elif node.op == "concat":
            value = torch.cat(args, 1)
        else:
            value = meaning(OPERATIONS[node.op], args, node.dims, node.table, node.width)
        numbers[number] = value
    return numbers[found].expand_as(x)


@native
def test_the_python_table_and_the_cpp_table_are_one() -> None:
    opcodes = native_engine.opcodes()
    assert set(opcodes) == set(OPERATIONS) | set(PRODUCTS)
    for name, operation in OPERATIONS.items():
        assert opcodes[name][1] == operation.arity, name
    assert len({code for code, _ in opcodes.values()}) == len(opcodes)


def test_the_header_lists_these_very_names() -> None:
    header = Path(__file__).parents[2] / "csrc" / "opcodes.h"
    if not header.exists():
        pytest.skip("the sources are not here")
    rows = re.findall(r"UNPAD_OP\((\w+), (\d), (\d), \w+\)", header.read_text())
    assert {name for name, _, _ in rows} == set(OPERATIONS) | set(PRODUCTS)
    for name, least, most in rows:
        arity = OPERATIONS[name].arity if name in OPERATIONS else PRODUCTS[name]
        assert int(least) == arity, name
        # a product may start from a sum, a sum may be one of products
        assert int(most) == arity + (name in ("linear", "sum_rows")), name


def test_step_functions_say_so_and_the_rest_has_a_derivative() -> None:
    steps = {n for n, o in OPERATIONS.items() if o.derivative is None}
    assert steps == {
        "sign", "floor", "ceil", "round", "trunc", "logical_not", "isnan", "eq", "ne", "lt", "le",
        "gt", "ge", "logical_and", "logical_or", "sigmoid_grad", "tanh_grad", "onehot_max",
        "inv_std", "normalize_grad", "scaled_normalize_grad", "scatter",
    }  # fmt: skip
