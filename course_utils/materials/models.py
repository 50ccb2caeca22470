"""The models that lessons share: small, plain, and the same in every lesson."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """One transformer block, normalised before attention and before the MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width must be a multiple of heads, got width={width} and heads={heads}")
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend to earlier tokens, then transform each token: ``[batch, length, width]``, in and out."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """A small decoder-only transformer, of bytes by default. The embedding serves as the output layer, too.

    Example:
        >>> GPT(width=32, layers=1, heads=2)(torch.zeros(2, 8, dtype=torch.int64)).shape
        torch.Size([2, 8, 256])
    """

    def __init__(
        self, vocabulary: int = 256, context: int = 256, width: int = 128, layers: int = 4, heads: int = 4
    ) -> None:
        super().__init__()
        self.context = context
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.position_embedding = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token_embedding.weight
        for embedding in (self.token_embedding, self.position_embedding):
            # As in GPT-2. The default of 1 makes the first logits, which these weights multiply again, far too large.
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Predict the token after each token: logits ``[batch, length, vocabulary]`` of int64 ``[batch, length]``."""
        length = tokens.shape[1]
        if length > self.context:
            raise ValueError(f"tokens has length {length}, and this model's context is {self.context}")
        positions = torch.arange(length, device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class LlamaBlock(nn.Module):
    """One block of a Llama: rotary positions, fewer heads of keys than of queries, SwiGLU, no biases."""

    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        self.attention_norm, self.mlp_norm = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.queries, self.projection = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.keys, self.values = (nn.Linear(width, width // heads * kv_heads, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        """Attend to earlier tokens, then transform each token: ``[batch, length, width]``, in and out.

        Args:
            x: the tokens' vectors.
            turns: complex numbers ``[length, width // heads // 2]`` of length 1, from :func:`rotary_turns`.
        """
        y = self.attention_norm(x)
        layers = ((self.queries, self.heads), (self.keys, self.kv_heads), (self.values, self.kv_heads))
        q, k, v = (layer(y).unflatten(-1, (heads, -1)).transpose(1, 2) for layer, heads in layers)
        q, k = (_turned(each, turns) for each in (q, k))
        k, v = (each.repeat_interleave(self.heads // self.kv_heads, dim=1) for each in (k, v))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).flatten(2))
        y = self.mlp_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def rotary_turns(length: int, size: int, base: float = 10_000.0) -> torch.Tensor:
    """By how much each pair of numbers of a query or key turns at each position: complex ``[length, size // 2]``."""
    angles = torch.outer(torch.arange(length), base ** -(torch.arange(0, size, 2) / size))
    return torch.polar(torch.ones_like(angles), angles)


def _turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)


class Llama(nn.Module):
    """A decoder-only transformer with the blocks of Llama 2 and 3; embedding and output layer are two.

    Its norms are LayerNorms without bias. They keep what RMSNorm's fused kernel keeps on CUDA, the input and a number
    or two for each token; in bf16 on a CPU, torch 2.13's ``RMSNorm`` keeps two copies of its input in fp32 besides.

    Example:
        >>> Llama(width=32, layers=1, heads=4, kv_heads=2, hidden=64)(torch.zeros(2, 8, dtype=torch.int64)).shape
        torch.Size([2, 8, 256])
    """

    def __init__(
        self,
        vocabulary: int = 256,
        context: int = 256,
        width: int = 128,
        layers: int = 4,
        heads: int = 4,
        kv_heads: int | None = None,
        hidden: int = 344,
    ) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, kv_heads or heads, hidden) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("turns", rotary_turns(context, width // heads), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Predict the token after each token: logits ``[batch, length, vocabulary]`` of int64 ``[batch, length]``."""
        x = self.token_embedding(tokens)
        for block in self.blocks:
            x = block(x, self.turns[: tokens.shape[1]])
        return self.head(self.norm(x))


class LSTMLanguageModel(nn.Module):
    """An embedding, an RNN (``lstm`` or ``gru``) as wide as a token's vector, and an output layer.

    Example:
        >>> LSTMLanguageModel(width=32)(torch.zeros(2, 8, dtype=torch.int64)).shape
        torch.Size([2, 8, 256])
    """

    def __init__(self, vocabulary: int = 256, width: int = 256, layers: int = 1, cell: str = "lstm") -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.rnn = {"lstm": nn.LSTM, "gru": nn.GRU}[cell](width, width, num_layers=layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Predict the token after each token: logits ``[batch, length, vocabulary]`` of int64 ``[batch, length]``."""
        hidden, _ = self.rnn(self.embedding(tokens))
        return self.head(hidden)


class MLP(nn.Sequential):
    """Linear layers with ReLU between them; ``widths`` begins with the input's size and ends with the output's.

    Example:
        >>> MLP((64, 32, 10))(torch.zeros(5, 64)).shape
        torch.Size([5, 10])
    """

    def __init__(self, widths: Sequence[int] = (64, 512, 512, 10)) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        super().__init__(*layers[:-1])
