"""The check of the lesson's exercise."""

from __future__ import annotations

import tempfile
from typing import Any

import torch

from course_utils.lessons.answers import NotRight, ask, exercise
from course_utils.materials.models import Llama, rotary_turns
from course_utils.measure.fresh import Switches


class TiedLlama(Llama):
    """What the exercise loads: drawn by no ``nn.init``, output layer and embedding tied, ``turns`` in no state."""

    def __init__(self) -> None:
        super().__init__(width=32, layers=1, hidden=32)
        for weight in self.parameters():
            weight.data.normal_(std=0.02)
        self.tie_weights()

    def tie_weights(self) -> None:
        """Let the output layer use the embedding's weights: one parameter under two names."""
        self.head.weight = self.token_embedding.weight

    def reset_buffers(self) -> None:
        """Compute the table of rotations."""
        self.turns = rotary_turns(256, 8)


@exercise
def check_load_decoder(answer: Any) -> str | None:
    """Looks at every tensor of the model, which was built in memory full of NaN; then at a file that lacks one."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, torch.random.fork_rng(devices=[]):
        path, expected = f"{folder}/model.pt", TiedLlama()
        state, before = expected.state_dict(), torch.get_rng_state()
        torch.save(state, path)
        if hint := _hint(_loaded(answer, path), expected):
            return hint
        if not torch.equal(torch.get_rng_state(), before):
            return "draws"
        del state["norm.weight"]
        torch.save(state, f"{folder}/lacks.pt")
        try:
            _loaded(answer, f"{folder}/lacks.pt")
        except NotRight:
            return None
    return "hides"


def _loaded(answer: Any, path: str) -> Any:
    with Switches.kept():
        torch.use_deterministic_algorithms(True)  # fills memory that nobody initialised with NaN
        torch.utils.deterministic.fill_uninitialized_memory = True
        return ask(answer, TiedLlama, path)


def _hint(model: Any, expected: TiedLlama) -> str | None:
    if not isinstance(model, TiedLlama):
        raise NotRight(f"Return the model; you return {type(model).__name__}.")
    its = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    for name, value in {**expected.state_dict(), "turns": expected.turns}.items():
        if its[name].is_meta:
            return "on_meta" if name == "turns" else "nothing_loaded"
        if not torch.equal(its[name], value):
            if name == "turns":
                return "empty_buffer"
            raise NotRight(f"{name} has other values than the file.")
    return None if model.head.weight is model.token_embedding.weight else "untied"
