"""Wrong answers to the exercises of the lesson: one for each hint."""

import torch


def fetches_the_images(images, scale):
    noisy = images.cpu() + scale * torch.randn(images.shape)
    return noisy.to(images.device)


def builds_it_for_real(make_model, checkpoint, device):
    model = make_model()
    model.load_state_dict(checkpoint)
    return model.to(device)


def on_meta(make_model):
    with torch.device("meta"):
        return make_model()


def reset_layers(model):
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()


def loading(*, place=lambda model, device: model.to_empty(device=device), assign=False, leave_out="", resets=False):
    """Loads as one should, with another place, or with a step left out or added."""

    def load_decoder(make_model, checkpoint, device):
        model = place(on_meta(make_model), device)
        if resets:
            reset_layers(model)
        if leave_out != "load":
            model.load_state_dict(checkpoint, assign=assign)
        if leave_out != "tie":
            model.tie_weights()
        if leave_out != "buffer":
            model.reset_buffers()
        return model

    return load_decoder


WRONG = {
    "check_add_noise": {
        "names_device": lambda images, scale: images + scale * torch.randn(images.shape).cuda(),
        "stays_here": lambda images, scale: images + scale * torch.randn(images.shape),
        "moved": lambda images, scale: images + scale * torch.randn(images.shape).to(images),
        "copies_number": lambda images, scale: images + images.new_tensor(scale) * torch.randn_like(images),
        "fetches": fetches_the_images,
        "other_dtype": lambda images, scale: images + scale * torch.randn(images.shape, device=images.device),
        "in_place": lambda images, scale: images.add_(scale * torch.randn_like(images)),
    },
    "check_load_decoder": {
        "built_for_real": builds_it_for_real,
        "nothing_loaded": loading(place=lambda model, device: model),
        "on_meta": loading(place=lambda model, device: model, assign=True, leave_out="buffer"),
        "moves_meta": loading(place=lambda model, device: model.to(device)),
        "other_device": loading(place=lambda model, device: model.to_empty(device="cpu")),
        "draws": loading(resets=True),
        "never_loaded": loading(leave_out="load"),
        "empty_buffer": loading(leave_out="buffer"),
        "untied": loading(leave_out="tie"),
        "shares": loading(place=lambda model, device: model, assign=True),
    },
}
