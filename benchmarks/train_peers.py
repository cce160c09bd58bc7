"""The PyTorch side of `train.py`: the same three models, written plainly."""

import math

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def embedding(vocabulary, dim):
    layer = nn.Embedding(vocabulary, dim)
    nn.init.normal_(layer.weight, std=dim**-0.5)
    return layer


class Heads(nn.Module):
    """Multi-head attention; queries, keys and values of one sequence in one product."""

    def __init__(self, dim, num_heads, *, cross):
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(dim, dim if cross else 3 * dim)
        self.memory = nn.Linear(dim, 2 * dim) if cross else None
        self.output = nn.Linear(dim, dim)

    def forward(self, x, memory=None, mask=None, causal=False):
        if self.memory is None:
            parts = self.query(x).chunk(3, dim=-1)
        else:
            parts = self.query(x), *self.memory(memory).chunk(2, dim=-1)
        query, keys, values = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts
        )
        context = functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=causal
        )
        return self.output(context.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """An encoder block, or with `cross` a decoder block; normalised after the sums."""

    def __init__(self, arguments, *, cross):
        super().__init__()
        dim, heads = arguments.dim, arguments.heads
        self.own = Heads(dim, heads, cross=False)
        self.cross = Heads(dim, heads, cross=True) if cross else None
        self.feedforward = nn.Sequential(
            nn.Linear(dim, arguments.feedforward),
            nn.ReLU(),
            nn.Linear(arguments.feedforward, dim),
        )
        self.norms = nn.ModuleList(
            nn.LayerNorm(dim, eps=1e-6) for _ in range(3 if cross else 2)
        )
        self.dropout = nn.Dropout(arguments.dropout)

    def forward(self, x, mask, memory=None):
        causal = self.cross is not None
        own = self.own(x, mask=None if causal else mask, causal=causal)
        x = self.norms[0](x + self.dropout(own))
        if causal:
            x = self.norms[1](x + self.dropout(self.cross(x, memory, mask)))
        return self.norms[-1](x + self.dropout(self.feedforward(x)))


class Transformer(nn.Module):
    """Vaswani et al., 2017, with tied output."""

    def __init__(self, arguments):
        super().__init__()
        self.dim = arguments.dim
        self.source = embedding(arguments.vocabulary, self.dim)
        self.target = embedding(arguments.vocabulary, self.dim)
        self.encoder, self.decoder = (
            nn.ModuleList(
                Block(arguments, cross=cross) for _ in range(arguments.layers)
            )
            for cross in (False, True)
        )
        self.dropout = nn.Dropout(arguments.dropout)
        longest = max(arguments.source_length, arguments.target_length)
        self.register_buffer("positions", self._sinusoids(longest))

    def _sinusoids(self, length):
        rates = torch.exp(torch.arange(0, self.dim, 2) * (-math.log(1e4) / self.dim))
        angles = torch.arange(length)[:, None] * rates
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)

    def _embed(self, table, ids):
        x = table(ids) * self.dim**0.5 + self.positions[: ids.shape[1]]
        return self.dropout(x)

    def forward(self, source_ids, target_ids, lengths):
        mask = (source_ids != 0)[:, None, None, :]
        memory = self._embed(self.source, source_ids)
        for block in self.encoder:
            memory = block(memory, mask)
        x = self._embed(self.target, target_ids)
        for block in self.decoder:
            x = block(x, mask, memory)
        return functional.linear(x, self.target.weight)


def run_packed(layer, x, lengths):
    """Runs a recurrent layer over real tokens only; also its final states."""
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    outputs, states = layer(packed)
    outputs, _ = pad_packed_sequence(outputs, batch_first=True, total_length=x.shape[1])
    return outputs, states


class Luong(nn.Module):
    """Luong et al., 2015: two LSTM layers, general attention, input feeding."""

    def __init__(self, arguments):
        super().__init__()
        dim, dropout = arguments.dim, arguments.dropout
        self.source = embedding(arguments.vocabulary, dim)
        self.target = embedding(arguments.vocabulary, dim)
        self.encoder = nn.LSTM(dim, dim, 2, batch_first=True, dropout=dropout)
        self.cells = nn.ModuleList([nn.LSTMCell(2 * dim, dim), nn.LSTMCell(dim, dim)])
        self.keys = nn.Linear(dim, dim, bias=False)
        self.readout = nn.Linear(2 * dim, dim, bias=False)
        self.output = nn.Linear(dim, arguments.vocabulary)
        self.dropout = nn.Dropout(dropout)

    def _reversal(self, source_ids, lengths):
        """Reverses the real tokens of each row, END staying last."""
        lengths = lengths.to(source_ids.device)[:, None]
        positions = torch.arange(source_ids.shape[1], device=source_ids.device)[None]
        return torch.where(positions < lengths - 1, lengths - 2 - positions, positions)

    def forward(self, source_ids, target_ids, lengths):
        order = self._reversal(source_ids, lengths)
        embedded = self.dropout(self.source(source_ids.gather(1, order)))
        values, (hidden, cell) = run_packed(self.encoder, embedded, lengths)
        keys, mask = self.keys(values).transpose(1, 2), source_ids.gather(1, order) == 0
        states = list(zip(hidden, cell, strict=True))
        readout, readouts = torch.zeros_like(hidden[0]), []
        for x in self.dropout(self.target(target_ids)).unbind(1):
            states[0] = self.cells[0](torch.cat([x, readout], -1), states[0])
            states[1] = self.cells[1](self.dropout(states[0][0]), states[1])
            query = states[1][0]
            scores = torch.bmm(query[:, None], keys)[:, 0].masked_fill(mask, -math.inf)
            context = torch.bmm(scores.softmax(-1)[:, None], values)[:, 0]
            readout = torch.tanh(self.readout(torch.cat([context, query], -1)))
            readouts.append(readout)
        return self.output(self.dropout(torch.stack(readouts, 1)))


class Bahdanau(nn.Module):
    """Bahdanau et al., 2015: bidirectional GRU, additive attention, maxout readout."""

    def __init__(self, arguments):
        super().__init__()
        dim = arguments.dim
        self.source = embedding(arguments.vocabulary, dim)
        self.target = embedding(arguments.vocabulary, dim)
        self.encoder = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(dim, dim)
        self.query = nn.Linear(dim, dim, bias=False)
        self.keys = nn.Linear(2 * dim, dim, bias=False)
        self.vector = nn.Linear(dim, 1, bias=False)
        self.cell = nn.GRUCell(3 * dim, dim)
        self.readout = nn.Linear(4 * dim, 2 * dim)
        self.output = nn.Linear(dim, arguments.vocabulary)
        self.dropout = nn.Dropout(arguments.dropout)

    def forward(self, source_ids, target_ids, lengths):
        embedded = self.dropout(self.source(source_ids))
        values, hidden = run_packed(self.encoder, embedded, lengths)
        keys, mask = self.keys(values), source_ids == 0
        state = torch.tanh(self.bridge(hidden[1]))
        embedded, together = self.dropout(self.target(target_ids)), []
        for x in embedded.unbind(1):
            tanh = torch.tanh(self.query(state)[:, None] + keys)
            scores = self.vector(tanh)[..., 0].masked_fill(mask, -math.inf)
            context = torch.bmm(scores.softmax(-1)[:, None], values)[:, 0]
            state = self.cell(torch.cat([x, context], -1), state)
            together.append(torch.cat([state, context], -1))
        sums = self.readout(torch.cat([torch.stack(together, 1), embedded], -1))
        readout = sums.unflatten(-1, (-1, 2)).amax(-1)
        return self.output(self.dropout(readout))


PEER_MODELS = {"transformer": Transformer, "luong": Luong, "bahdanau": Bahdanau}


def peer_training(name, arguments, batches, *, compiled):
    """Facts about this side, and a function that trains on all batches."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # JAX multiplies float32 in TF32 on GPUs by default: so do both.
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    model = PEER_MODELS[name](arguments).to(device)
    optimizer = torch.optim.Adam(
        model.parameters(), arguments.learning_rate, eps=1e-7, fused=True
    )
    forward = torch.compile(model) if compiled else model

    def train():
        total = torch.zeros((), device=device)
        for arrays in batches:
            tensors = [torch.from_numpy(x).long() for x in arrays]
            lengths = (tensors[0] != 0).sum(1)  # on the CPU: packing wants them there
            source_ids, target_ids, label_ids = (x.to(device) for x in tensors)
            logits = forward(source_ids, target_ids, lengths)
            loss = functional.cross_entropy(
                logits.flatten(0, 1),
                label_ids.flatten(),
                ignore_index=0,
                label_smoothing=arguments.label_smoothing,
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        return float(total) / len(batches)

    return {
        "device": device,
        "version": f"torch {torch.__version__}",
        "parameters": sum(x.numel() for x in model.parameters()),
    }, train
