"""Wrong answers to the exercise of the lesson: one for each hint."""

import torch


def features(model, batches):
    return torch.cat([model(inputs) for inputs in batches])


def dropout(model, batches):
    with torch.no_grad():
        return features(model, batches)


def graph(model, batches):
    model.eval()
    return features(model, batches).detach()


def inference(model, batches):
    model.eval()
    with torch.inference_mode():
        return features(model, batches)


def grad_left_off(model, batches):
    torch.set_grad_enabled(False)
    model.eval()
    return features(model, batches)


def grad_left_on(model, batches):
    try:
        return after_an_error(model, batches)
    finally:
        torch.set_grad_enabled(True)


def left_in_eval(model, batches):
    model.eval()
    with torch.no_grad():
        return features(model, batches)


def frozen_woken(model, batches):
    made = left_in_eval(model, batches)
    model.train()
    return made


def after_an_error(model, batches):
    modes = [(module, module.training) for module in model.modules()]
    made = left_in_eval(model, batches)
    for module, mode in modes:
        module.training = mode
    return made


def weights_changed(model, batches):
    return after_an_error(model.requires_grad_(False), batches)


WRONG = {
    "dropout": dropout,
    "graph": graph,
    "inference": inference,
    "grad_left_off": grad_left_off,
    "grad_left_on": grad_left_on,
    "left_in_eval": left_in_eval,
    "frozen_woken": frozen_woken,
    "after_an_error": after_an_error,
    "weights_changed": weights_changed,
}
