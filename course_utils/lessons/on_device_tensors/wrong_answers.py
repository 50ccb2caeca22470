"""Wrong answers to the exercises of lesson 02: one for each hint."""

import numpy as np
import torch


def names_cuda(images, scale):
    return images + scale * torch.randn(images.shape).cuda()


def leaves_noise_on_cpu(images, scale):
    return images + scale * torch.randn(images.shape)


def moves_the_noise(images, scale):
    return images + scale * torch.randn(images.shape, dtype=images.dtype).to(images.device)


def forgets_the_dtype(images, scale):
    return images + scale * torch.randn(images.shape, device=images.device)


def fetches_the_images(images, scale):
    noisy = images.cpu() + scale * torch.randn(images.shape)
    return noisy.to(images.device)


def adds_in_place(images, scale):
    return images.add_(scale * torch.randn_like(images))


def builds_it_for_real(make_model, checkpoint, device):
    model = make_model()
    model.load_state_dict(checkpoint)
    return model.to(device)


def on_meta(make_model):
    with torch.device("meta"):
        return make_model()


def only_assigns(make_model, checkpoint, device):
    model = on_meta(make_model)
    model.load_state_dict(checkpoint, assign=True)
    model.tie_weights()
    return model


def forgets_to_load(make_model, checkpoint, device):
    model = on_meta(make_model).to_empty(device=device)
    model.tie_weights()
    model.reset_buffers()
    return model


def forgets_the_buffer(make_model, checkpoint, device):
    model = on_meta(make_model).to_empty(device=device)
    model.load_state_dict(checkpoint)
    model.tie_weights()
    return model


def forgets_to_tie(make_model, checkpoint, device):
    model = on_meta(make_model).to_empty(device=device)
    model.load_state_dict(checkpoint)
    model.reset_buffers()
    return model


def moves_it_off_meta(make_model, checkpoint, device):
    model = on_meta(make_model).to(device)
    model.load_state_dict(checkpoint)
    model.tie_weights()
    model.reset_buffers()
    return model


def names_the_cpu(make_model, checkpoint, device):
    model = on_meta(make_model).to_empty(device="cpu")
    model.load_state_dict(checkpoint)
    model.tie_weights()
    model.reset_buffers()
    return model


def draws_for_nothing(make_model, checkpoint, device):
    model = on_meta(make_model).to_empty(device=device)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    model.load_state_dict(checkpoint)
    model.tie_weights()
    model.reset_buffers()
    return model


def labels_of(labels):
    return torch.from_numpy(labels).long()


def scales_the_features(features, labels):
    features /= features.max()
    return torch.from_numpy(features), labels_of(labels)


WRONG = {
    "check_add_noise": {
        "names_device": names_cuda,
        "stays_here": leaves_noise_on_cpu,
        "moved": moves_the_noise,
        "fetches": fetches_the_images,
        "other_dtype": forgets_the_dtype,
        "in_place": adds_in_place,
    },
    "check_as_tensors": {
        "elsewhere": lambda features, labels: (torch.from_numpy(features).to("meta"), labels_of(labels)),
        "in_place": scales_the_features,
        "float64": lambda features, labels: (torch.from_numpy(np.array(features.tolist())), labels_of(labels)),
        "copies": lambda features, labels: (torch.tensor(features), labels_of(labels)),
        "float_labels": lambda features, labels: (torch.from_numpy(features), torch.from_numpy(labels)),
        "other_integers": lambda features, labels: (torch.from_numpy(features), torch.from_numpy(labels).int()),
    },
    "check_load_decoder": {
        "built_for_real": builds_it_for_real,
        "on_meta": only_assigns,
        "moves_meta": moves_it_off_meta,
        "other_device": names_the_cpu,
        "draws": draws_for_nothing,
        "never_loaded": forgets_to_load,
        "empty_buffer": forgets_the_buffer,
        "untied": forgets_to_tie,
    },
}
