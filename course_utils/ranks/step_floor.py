"""The least time that a training step can take on so many GPUs: what must be computed, and what must travel.

A step cannot be shorter than its operations take at the rate of a data sheet, nor than the bytes of its collectives
take at the rate of the links. Beside each other both take as long as the longer one; one after the other, their sum.
Operations are counted in two ways: those of MFU, 6 P T (P parameters, T tokens on a rank) and attention's; and those
that cannot be left out, which are fewer.

Source: the bytes are those of ring algorithms, S. Rajbhandari et al., ZeRO, arXiv 1910.02054, section 7, and NCCL's
bus bandwidths (nccl-tests, doc/PERFORMANCE.md). That a ring brings each byte into a machine once, through all its
network cards together: J. Austin et al., How To Scale Your Model, chapter on GPUs (2025).
"""

from __future__ import annotations

from dataclasses import dataclass

from course_utils.records.kinds.cluster_plan import GPTShape


@dataclass(frozen=True)
class Rates:
    """What a GPU computes and what its links carry, in a second."""

    flops: float  # operations, of the dtype that is computed in
    inside: float  # bytes that a rank can send to others of its machine: the line's rate, for a least time
    between: float  # bytes that a rank can send to another machine, by a network card of its own
    group: int = 8  # ranks in a machine


@dataclass(frozen=True)
class StepFloor:
    """The least seconds of one training step."""

    compute_s: float
    inside_s: float  # collectives that stay in a machine
    between_s: float  # those that leave it

    @property
    def hidden_s(self) -> float:
        """With all communication beside computing."""
        return max(self.compute_s, self.inside_s, self.between_s)

    @property
    def exposed_s(self) -> float:
        """With nothing beside anything."""
        return self.compute_s + self.inside_s + self.between_s


def step_flops(model: GPTShape, tokens: int, length: int, *, checkpointing: bool = False, least: bool = False) -> float:
    """Operations of a step on a rank: forward once, backward twice as much, and forward once more with checkpointing.

    MFU is usually given with attention as if it were not causal (12 x layers x width x length a token), and with
    embeddings that are only looked up as if they were multiplied. With ``least``, neither is counted.
    """
    parameters, attention = model.parameters, 4 * model.layers * model.width * length
    if least:  # a GPT multiplies by its embedding in the output layer
        parameters -= model.width * (model.vocabulary if model.hidden else model.context)
        attention //= 2
    return (2 * parameters + attention) * tokens * (4 if checkpointing else 3)


def traffic_bytes(
    parameters: int, strategy: str, ranks: int, *, group: int = 8, weight: int = 2, gradient: int = 4
) -> dict[str, float]:
    """What each rank sends in a step, by collective, in bytes, with ring algorithms.

    Args:
        parameters: of the model.
        strategy: ``ddp``, ``fsdp_no_reshard``, ``fsdp`` or ``hsdp``.
        ranks: how many there are.
        group: ranks that share shards under ``hsdp``.
        weight: bytes of a weight when it is gathered.
        gradient: bytes of a gradient when it is reduced.

    Example:
        >>> traffic_bytes(1_000_000, "fsdp", 8)
        {'all-gather': 3500000.0, 'reduce-scatter': 3500000.0, 'all-reduce': 0.0}
    """
    shards = {"ddp": 1, "hsdp": group}.get(strategy, ranks)
    copies, share = ranks // shards, (shards - 1) / shards
    gathers = 1 if strategy == "fsdp_no_reshard" else 2
    return {
        "all-gather": gathers * share * weight * parameters,
        "reduce-scatter": share * gradient * parameters,
        "all-reduce": 2 * (copies - 1) / copies * gradient * parameters / shards,
    }


def step_floor(
    model: GPTShape,
    strategy: str,
    ranks: int,
    rates: Rates,
    *,
    tokens: int,
    length: int | None = None,
    checkpointing: bool = False,
) -> StepFloor:
    """The least time of a step in bf16 with gradients in fp32.

    Args:
        model: its size.
        strategy: ``ddp``, ``fsdp_no_reshard``, ``fsdp`` or ``hsdp`` with a machine's ranks in a group.
        ranks: how many there are, on full machines of ``rates.group``.
        rates: of a GPU and its links.
        tokens: on each rank, in a step.
        length: of a sequence; the model's context by default.
        checkpointing: whether each block is computed again.

    Raises:
        ValueError: if the ranks do not fill machines.
    """
    if tokens < 1 or ranks < 1 or (ranks > rates.group and ranks % rates.group):
        raise ValueError(
            f"tokens and ranks are 1 or more, and more than one machine is full: got {tokens} tokens, and {ranks} ranks"
            f" on machines of {rates.group}"
        )
    sent = traffic_bytes(model.parameters, strategy, ranks, group=min(rates.group, ranks))
    sharded, reduced = sent["all-gather"] + sent["reduce-scatter"], sent["all-reduce"]
    inside = between = 0.0
    if strategy == "hsdp":  # shards within a machine, copies across: each rank reduces its own shard
        inside, between = sharded / rates.inside, reduced / rates.between
    elif ranks <= rates.group or rates.inside <= rates.group * rates.between:
        inside = (sharded + reduced) / rates.inside
    else:  # one ring through all is as fast as its slowest link: into a machine lead all its network cards
        between = (sharded + reduced) / (rates.group * rates.between)
    flops = step_flops(model, tokens, length or model.context, checkpointing=checkpointing, least=True)
    return StepFloor(flops / rates.flops, inside, between)
