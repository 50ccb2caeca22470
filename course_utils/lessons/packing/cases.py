"""Eight ways to keep packed documents apart, tried on small models; a training step on padded and packed documents."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import varlen
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.nn.utils.rnn import pad_sequence

from course_utils.measure.fresh import Fresh, fresh
from course_utils.measure.machine import course_size, device_kind, scaled

# Twelve functions of shutil.py in CPython 3.11: one token for four bytes.
LENGTHS = (137, 21, 25, 592, 162, 650, 143, 143, 103, 731, 587, 262)
DOCUMENTS, SHORT = (LENGTHS[:3], 160) if course_size() == "test" else (LENGTHS * scaled(cpu=1, cuda=2), 1024)
TOKENS, VOCABULARY, SEPARATOR = sum(DOCUMENTS), 256, 0

Attend, Documents = Callable[..., torch.Tensor], list[torch.Tensor]  # q, k and v of [1, heads, tokens, head size]
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor, Attend]  # tokens, targets, positions, attention
Leak, Pack = Callable[..., float], Callable[[Documents], tuple[torch.Tensor, ...]]  # the notebook's functions
causal, compiled = partial(sdpa, is_causal=True), cache(partial(torch.compile, flex_attention))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, convolves: bool) -> None:
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.convolution = nn.Conv1d(width, width, 4, groups=width) if convolves else None

    def forward(self, x: torch.Tensor, attend: Attend) -> torch.Tensor:
        if self.convolution:  # over a token and the three before it
            x = x + self.convolution(functional.pad(x.mT, (3, 0))).mT
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(attend(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class Decoder(nn.Module):
    def __init__(self, width: int, heads: int, layers: int, convolves: bool = False) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(max(LENGTHS), width)
        self.blocks = nn.ModuleList(Block(width, heads, convolves) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = block(x, attend)
        return self.head(x)


class Encoder(nn.TransformerEncoder):
    def __init__(self) -> None:
        super().__init__(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2)  # with its dropout of 0.1
        self.tokens = nn.Embedding(VOCABULARY, 64)

    def forward(self, tokens: torch.Tensor, **masks: Any) -> torch.Tensor:
        return super().forward(self.tokens(tokens), **masks)


def eight(leak: Leak, first: int = 24) -> list[dict[str, Any]]:
    """Rows for a table: by how much document 2's logits change with document 1, as one trains and as one tests."""
    document, positions = torch.arange(2 * first) // first, torch.arange(2 * first) % first
    earlier = torch.ones(2 * first, 2 * first).tril().bool()
    apart = earlier & (document[:, None] == document)
    ours = partial(Decoder, 64, 4, 2)

    def given(mask: torch.Tensor) -> dict[str, Any]:
        return {"positions": positions, "attend": partial(sdpa, attn_mask=mask)}

    ways = {
        "a separator, positions restart": (ours, given(earlier)),
        "block mask": (ours, given(apart)),
        "block mask .float()": (ours, given(apart.float())),
        "numbers as HF's attention_mask": (ours, given(earlier & (document + 1).bool())),  # 0 would be padding
        "block mask, and a convolution": (partial(ours, convolves=True), given(apart)),
        "TransformerEncoder, SDPA's mask": (Encoder, {"mask": apart}),
        "TransformerEncoder, its own mask": (Encoder, {"mask": ~apart}),
        "its own mask, is_causal=True": (Encoder, {"mask": ~apart, "is_causal": True}),
    }
    rows = []
    for name, (make, options) in ways.items():
        torch.manual_seed(0)
        model, tokens = make(), torch.randint(1, VOCABULARY, (1, 2 * first))
        tokens[:, [first - 1, -1]] = SEPARATOR
        rows.append({"way": name})
        for mode, trains in (("train()", True), ("eval(), no_grad", False)):
            with torch.set_grad_enabled(trains):
                rows[-1][mode] = leak(partial(model.train(trains), **options), tokens, first)
    return rows


def same(expected: tuple[torch.Tensor, ...], found: tuple[torch.Tensor, ...]) -> bool:
    """A check: the padded batch's loss, and the gradient of its tokens' embeddings, as near as the dtype allows."""
    near = 0.05 if device_kind() == "cuda" else 1e-4
    return all((one - other).norm() <= near * one.norm() for one, other in zip(expected, found, strict=True))


def steps(pack: Pack) -> dict[str, Fresh]:
    """A forward and a backward pass over all documents: padded, sorted into batches, packed into rows."""
    ways = {"padded": lambda documents: [_padded(documents)], "four sorted batches": _in_four}
    ways["short rows, block mask"] = partial(_short_rows, pack)
    ways |= {name: partial(_one_row, pack, attention) for name, attention in _ANYWHERE.items()}
    return {name: fresh(_step, way) for name, way in ways.items()}


def kernels(pack: Pack) -> dict[str, Fresh]:
    """The same, padded and packed, by each kernel of CUDA that runs here; those that do not are named."""
    found = {name: way for name, way in steps(pack).items() if name == "padded" or name.endswith("mask")}
    for name, attention in _ON_CUDA.items():
        try:
            _step(way := partial(_one_row, pack, attention))()
        except Exception as error:  # no compiler, or no kernel for this GPU
            warnings.warn(f"{name} does not run here, and is left out: {error}"[:300], stacklevel=2)
        else:
            found[name] = fresh(_step, way)
    return found


def _step(way: Callable[[Documents], list[Batch]]) -> Callable[[], tuple[torch.Tensor, ...]]:
    kind, generator = device_kind(), torch.Generator().manual_seed(1)
    documents = [torch.randint(1, VOCABULARY, (length,), generator=generator).to(kind) for length in DOCUMENTS]
    model, batches = Decoder(*scaled(cpu=(256, 4, 1), cuda=(1024, 16, 8))).to(kind), way(documents)

    def step() -> tuple[torch.Tensor, ...]:
        model.zero_grad()
        losses = []
        for tokens, targets, positions, attend in batches:
            with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
                logits = model(tokens, positions, attend).flatten(0, 1)
            losses.append(functional.cross_entropy(logits.float(), targets.flatten(), reduction="sum") / TOKENS)
            losses[-1].backward()
        return sum(losses).detach(), model.tokens.weight.grad

    return step


def _padded(documents: Documents) -> Batch:
    tokens = pad_sequence(documents, batch_first=True)
    targets = pad_sequence([functional.pad(each[1:], (0, 1), value=-100) for each in documents], True, -100)
    return tokens, targets, torch.arange(tokens.shape[1], device=tokens.device), causal


def _in_four(documents: Documents) -> list[Batch]:
    quarter, by_length = -(-len(documents) // 4), sorted(documents, key=len)
    return [_padded(by_length[start : start + quarter]) for start in range(0, len(documents), quarter)]


def _one_row(pack: Pack, attention: Callable[..., Attend], documents: Documents) -> list[Batch]:
    *given, mask = pack(documents)
    return [(*given, attention(mask, torch.tensor([len(each) for each in documents], device=mask.device)))]


def _short_rows(pack: Pack, documents: Documents) -> list[Batch]:
    rows: list[Documents] = [[] for _ in documents]
    for each in sorted(documents, key=len, reverse=True):  # into the first row that has room
        next(row for row in rows if sum(map(len, row)) + len(each) <= SHORT).append(each)
    return [batch for row in rows if row for batch in _one_row(pack, _ANYWHERE["one row, block mask"], row)]


def _each(lengths: list[int], *qkv: torch.Tensor) -> torch.Tensor:
    return torch.cat([causal(*own) for own in zip(*(each.split(lengths, dim=2) for each in qkv), strict=True)], dim=2)


def _flex(mask: torch.Tensor, sizes: torch.Tensor) -> Attend:
    document = torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes)

    def sees(row: Any, head: Any, query: Any, key: Any) -> Any:
        return (document[query] == document[key]) & (key <= query)

    # Not compiled: before torch 2.13 compiling it takes minutes on CUDA.
    return partial(compiled(), block_mask=create_block_mask(sees, None, None, *mask.shape, device=str(mask.device)))


def _by_token(attention: Attend) -> Attend:  # of [tokens, heads, head size]
    return lambda *qkv: attention(*(each[0].transpose(0, 1).contiguous() for each in qkv)).transpose(0, 1)[None]


def _varlen(mask: torch.Tensor, sizes: torch.Tensor) -> Attend:
    ends, longest = functional.pad(sizes.cumsum(0), (1, 0)).int(), sizes.max().item()
    given = {"cu_seq_q": ends, "cu_seq_k": ends, "max_q": longest, "max_k": longest}
    return _by_token(partial(varlen.varlen_attn, **given, window_size=(-1, 0)))  # else it is not causal


def _nested(mask: torch.Tensor, sizes: torch.Tensor) -> Attend:
    given = {"offsets": functional.pad(sizes.cumsum(0), (1, 0)), "min_seqlen": 1, "max_seqlen": sizes.max().item()}

    def rows(each: torch.Tensor) -> torch.Tensor:
        return torch.nested.nested_tensor_from_jagged(each, **given).transpose(1, 2)

    return _by_token(lambda *qkv: causal(*map(rows, qkv)).transpose(1, 2).values())


_ANYWHERE = {
    "one row, block mask": lambda mask, sizes: partial(sdpa, attn_mask=mask),
    "one call a document": lambda mask, sizes: partial(_each, sizes.tolist()),
}
_ON_CUDA = {"one row, FlexAttention": _flex, "one row, varlen_attn": _varlen, "one row, nested tensors": _nested}
