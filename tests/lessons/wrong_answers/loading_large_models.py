"""Wrong answers to the exercise of `loading_large_models`: one for each hint."""

import torch


def loading(*, device="cpu", assign=False, strict=True, leave_out=""):
    def load_decoder(make_model, path):
        with torch.device("meta"):
            model = make_model()
        if device == "cpu" and not assign:
            model.to_empty(device=device)
        model.load_state_dict(torch.load(path, mmap=True), assign=assign, strict=strict)
        if leave_out != "tie":
            model.tie_weights()
        if leave_out != "buffer":
            model.reset_buffers()
        return model

    return load_decoder


def drawn(make_model, path):
    model = make_model()
    model.load_state_dict(torch.load(path))
    return model


WRONG = {
    "nothing_loaded": loading(device="meta", leave_out="buffer"),
    "on_meta": loading(assign=True, leave_out="buffer"),
    "empty_buffer": loading(leave_out="buffer"),
    "untied": loading(assign=True, leave_out="tie"),
    "draws": drawn,
    "hides": loading(assign=True, strict=False),
}
