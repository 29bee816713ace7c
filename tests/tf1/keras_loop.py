"""What Keras's layers are checked against: its equations, one sequence and one step at a time.

Nothing here knows of cells, batches or engines: weights are taken by their Keras names, gates are
cut out of Keras's layouts, and a mask is an ``if`` at every step.
"""

from __future__ import annotations

import torch


def sigmoid(x):
    return 1 / (1 + torch.exp(-x))


def norm(x, eps):
    centred = x - x.sum() / len(x)
    return centred / ((centred * centred).sum() / len(x) + eps).sqrt()


def simple_rnn(w, x, states):
    h = torch.tanh(x @ w["kernel"] + states[0] @ w["recurrent_kernel"] + w["bias"])
    return h, [h]


def layer_norm_simple_rnn(w, x, states):
    total = x @ w["kernel"] + states[0] @ w["recurrent_kernel"]
    h = torch.tanh(norm(total, 1e-5) * w["gamma"] + w["bias"])
    return h, [h]


def gate(w, name, number, units):
    return w[name][..., number * units : (number + 1) * units]


def lstm(w, x, states):
    (h, c), n = states, len(states[0])

    def total(number):
        parts = (gate(w, name, number, n) for name in ("kernel", "recurrent_kernel", "bias"))
        kernel, recurrent, bias = parts
        return x @ kernel + h @ recurrent + bias

    def peephole(name, state):
        return w.get(f"{name}_gate_peephole_weights", torch.zeros_like(state)) * state

    new = sigmoid(total(1) + peephole("forget", c)) * c
    new = new + sigmoid(total(0) + peephole("input", c)) * torch.tanh(total(2))
    h = sigmoid(total(3) + peephole("output", new)) * torch.tanh(new)
    return h, [h, new]


def layer_norm_lstm(w, x, states):
    (h, c), n = states, len(states[0])
    total = norm(x @ w["kernel"], 1e-3) * w["kernel_norm.gamma"] + w["kernel_norm.beta"]
    from_h = norm(h @ w["recurrent_kernel"], 1e-3) * w["recurrent_norm.gamma"]
    total = total + from_h + w["recurrent_norm.beta"] + w["bias"]
    i, f, g, o = (total[k * n : (k + 1) * n] for k in range(4))
    c = norm(sigmoid(f) * c + sigmoid(i) * torch.tanh(g), 1e-3)
    c = c * w["state_norm.gamma"] + w["state_norm.beta"]
    h = sigmoid(o) * torch.tanh(c)
    return h, [h, c]


def gru_after(w, x, states):
    h, n = states[0], len(states[0])
    from_x = [x @ gate(w, "kernel", k, n) + gate(w, "bias", k, n)[0] for k in range(3)]
    from_h = [h @ gate(w, "recurrent_kernel", k, n) + gate(w, "bias", k, n)[1] for k in range(3)]
    z, r = sigmoid(from_x[0] + from_h[0]), sigmoid(from_x[1] + from_h[1])
    new = torch.tanh(from_x[2] + r * from_h[2])
    h = z * h + (1 - z) * new
    return h, [h]


def gru_before(w, x, states):
    h, n = states[0], len(states[0])
    from_x = [x @ gate(w, "kernel", k, n) + gate(w, "bias", k, n) for k in range(3)]
    u = [gate(w, "recurrent_kernel", k, n) for k in range(3)]
    z, r = sigmoid(from_x[0] + h @ u[0]), sigmoid(from_x[1] + h @ u[1])
    h = z * h + (1 - z) * torch.tanh(from_x[2] + (r * h) @ u[2])
    return h, [h]


def stacked(w, x, states):
    """An LSTM below, a GRU (reset after) above."""
    below = {k.removeprefix("cells.0."): v for k, v in w.items() if k.startswith("cells.0.")}
    above = {k.removeprefix("cells.1."): v for k, v in w.items() if k.startswith("cells.1.")}
    x, first = lstm(below, x, states[:2])
    x, second = gru_after(above, x, states[2:])
    return x, [*first, *second]


def layer(step, weights, x, mask, states, *, go_backwards, zero_output, units):
    """All outputs [B, T, H] in the order computed, the last ones [B, H], and the final states."""
    sequences, finals = [], []
    for row in range(len(x)):
        current, held = [state[row] for state in states], x.new_zeros(units)
        outputs = []
        steps = range(x.shape[1])
        for t in reversed(steps) if go_backwards else steps:
            if mask[row, t]:
                held, current = step(weights, x[row, t], current)
                outputs.append(held)
            else:
                outputs.append(torch.zeros_like(held) if zero_output else held)
        sequences.append(outputs)
        finals.append(current)
    if not sequences:
        return x.new_zeros(0, x.shape[1], units), x.new_zeros(0, units), states
    last = [outputs[-1] if outputs else x.new_zeros(units) for outputs in sequences]
    rows = [torch.stack(o) if o else x.new_zeros(0, units) for o in sequences]
    return torch.stack(rows), torch.stack(last), [torch.stack(s) for s in zip(*finals, strict=True)]
