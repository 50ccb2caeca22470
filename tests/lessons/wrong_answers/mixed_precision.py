"""Wrong answers to the exercises of the lesson: one for each hint."""

from torch import nn


def step(*, scales=True, backward=True, unscales=0, scalers_step=True, updates=True, clips=True, returns=True):
    def scaled_step(loss, model, optimizer, scaler):
        scaled = scaler.scale(loss) if scales else loss
        if backward:
            scaled.backward()
        for _ in range(unscales):
            scaler.unscale_(optimizer)
        if clips:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        else:
            norm = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
        if scalers_step:
            scaler.step(optimizer)
        else:
            optimizer.step()
        if updates:
            scaler.update()
        return norm if returns else None

    return scaled_step


def updates_early(loss, model, optimizer, scaler):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.update()
    scaler.step(optimizer)
    return norm


def unscales_late(loss, model, optimizer, scaler):
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.update()
    return norm


WRONG = {
    "no_scaling": step(scales=False, scalers_step=False, updates=False),
    "own_step": step(scalers_step=False, updates=False),
    "clips_scaled": step(),
    "no_update": step(unscales=1, updates=False),
    "early_update": updates_early,
    "late_unscale": unscales_late,
    "no_clipping": step(unscales=1, clips=False),
}
