"""Wrong answers to the exercise of `lightning`: one for each hint."""

HF = {"logging_nan_inf_filter": False, "logging_steps": 10, "disable_tqdm": True, "save_strategy": "no"}
HF["accelerator_config"] = {"non_blocking": True}
LEAN = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}


def answer(hugging_face=HF, lightning=LEAN, **log):
    return lambda: (hugging_face, lightning, log)


WRONG = {
    "filtered": answer(hugging_face=HF | {"logging_nan_inf_filter": True}),
    "copies": answer(hugging_face=HF | {"accelerator_config": None}),
    "logs_early": answer(hugging_face=HF | {"logging_first_step": True}),
    "hf_not_logged": answer(hugging_face=HF | {"logging_steps": 50}),
    "hf_left_on": answer(hugging_face=HF | {"save_strategy": "steps"}),
    "left_on": answer(lightning=LEAN | {"enable_checkpointing": True}),
    "nothing_logged": answer(lightning={"barebones": True}),
    "waits": answer(prog_bar=True),
}
