"""Does it train? Methods against each other: same policy, same tasks of each seed, same episodes.

    python compare.py --methods grpo,gigpo,graphgpo --env keydoor --seeds 5

Every (method, seed) is a run of the method's own script in a process of its own, with one thread
each and as many at a time as there are cores. Finished runs are kept: calling it again continues.
The table gives means over seeds with 95 % bootstrap intervals, and differences to the first method
paired by seed. Arguments that are not known here go to the scripts.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from tqdm import tqdm

HERE = Path(__file__).resolve().parent


def script_of(method):
    return HERE / ("grpo.py" if method == "grpo" else f"methods/{method}.py")


def run(out, method, seed, options):
    """Plays one run to its end, from its checkpoint if there is one; returns its metrics rows."""
    place = ["--resume" if (out / "checkpoint.pt").exists() else "--out", str(out)]
    command = [sys.executable, str(script_of(method)), "--seed", str(seed), *place, *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{method}, seed {seed}: {done.stderr.strip().splitlines()[-1]}")
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def curve(rows):
    """Episodes played and held-out success at each evaluation: two arrays."""
    episodes = np.cumsum([row["episodes"] for row in rows])
    at = [i for i, row in enumerate(rows) if row["eval_success"] is not None]
    return episodes[at], np.array([rows[i]["eval_success"] for i in at])


def episodes_to(rows, level):
    """Episodes until held-out success first reaches `level`, interpolated; NaN if it never does."""
    episodes, success = curve(rows)
    reached = np.flatnonzero(success >= level)
    if not len(reached):
        return np.nan
    k = reached[0]
    part = (level - success[k - 1]) / (success[k] - success[k - 1]) if k else 0.0
    return episodes[k - 1] + part * (episodes[k] - episodes[k - 1]) if k else 0.0


def interval(values, form):
    """Mean and 95 % bootstrap interval of the values, one a seed, as text."""
    values = np.asarray(values, float)
    if np.isnan(values).any():
        return f"not reached by {np.isnan(values).sum()} of {len(values)}"
    picks = np.random.default_rng(0).integers(len(values), size=(10_000, len(values)))
    low, high = np.percentile(values[picks].mean(1), [2.5, 97.5])
    return f"{values.mean():{form}} [{low:{form}}, {high:{form}}]"


def table(results):
    """Markdown: a row for each method; results: {method: [rows of each seed]}."""
    first = next(iter(results))
    measures = {
        "at the start": (lambda rows: curve(rows)[1][0], ".2f"),
        "at the end": (lambda rows: curve(rows)[1][-1], ".2f"),
        "mean over the run": (lambda rows: curve(rows)[1].mean(), ".3f"),
        "episodes to 0.8": (lambda rows: episodes_to(rows, 0.8), ".0f"),
        f"difference to {first}": (None, "+.0f"),
        "episodes to 0.9": (lambda rows: episodes_to(rows, 0.9), ".0f"),
    }
    lines = ["| method | " + " | ".join(measures) + " |", "|---" * (len(measures) + 1) + "|"]
    to_first = np.array([episodes_to(rows, 0.8) for rows in results[first]])
    for method, runs in results.items():
        cells = []
        for measure, form in measures.values():
            values = [measure(rows) if measure else episodes_to(rows, 0.8) for rows in runs]
            if measure:
                cells.append(interval(values, form))
            else:
                cells.append("" if method == first else interval(values - to_first, form))
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--methods", default="grpo,gigpo,graphgpo", help="comma-separated")
    parser.add_argument("--env", default="keydoor")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 1 to this number")
    parser.add_argument(
        "--out", type=Path, default=HERE / "runs/compare", help="folder of the runs"
    )
    args, options = parser.parse_known_args()
    methods = args.methods.split(",")
    for method in methods:
        if not script_of(method).exists():
            parser.error(f"there is no method {method!r}")
    jobs = [(method, seed) for seed in range(1, args.seeds + 1) for method in methods]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        calls = [
            pool.submit(run, args.out / args.env / f"{method}-{seed}", method, seed,
                        ["--env", args.env, "--eval-every", "5", *options])
            for method, seed in jobs
        ]  # fmt: skip
        rows = [call.result() for call in tqdm(calls, desc="runs")]
    results = {m: [r for (method, _), r in zip(jobs, rows) if method == m] for m in methods}
    print(table(results))
    print(f"\nheld-out panel {rows[0][0]['held_out']}, {args.seeds} seeds: {' '.join(sys.argv)}")
