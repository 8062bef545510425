"""Does it train? Methods against each other: same policy, same tasks of each seed, same budget.

    python compare.py --methods grpo,gigpo,graphgpo --env keydoor --seeds 5
    python compare.py --methods grpo,sharpo:mix=0.05,sharpo:mix=0.8        # with options of its own

Every (method, seed) is a run of the method's own script in a process of its own, with one thread
each and as many at a time as there are cores. Finished runs are kept: calling it again continues,
with more iterations too, but not with other options.

The budget counts all tokens that the policy writes or scores, a teacher's passes and verification
rollouts included, so that a costly method pays for what it uses. Success at the budget and the area
under the curve are read off the curves at the same number of tokens: --budget, or the most that all
runs have spent. The table gives means over seeds with 95 % bootstrap intervals, and differences to
the first method paired by seed; an interval that holds 0 is no difference. `(guided)` is a method
evaluated with what it samples with, not the network alone. Arguments that are not known here go to
the scripts.
"""

import argparse
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from tqdm import tqdm

from common import explain

HERE = Path(__file__).resolve().parent


def script_of(method):
    return HERE / ("grpo.py" if method == "grpo" else f"methods/{method}.py")


def run(out, spec, seed, options):
    """Plays one run to its end, from its checkpoint if there is one; returns its metrics rows.

    Args: spec: a method, with options of its own after colons: "sharpo:mix=0.8".
    """
    method, *settings = spec.split(":")
    begun = (out / "checkpoint.pt").exists()
    if not begun:  # it may have been killed before its first checkpoint
        shutil.rmtree(out, ignore_errors=True)
    place = ["--resume" if begun else "--out", str(out)]
    own = [text for setting in settings for text in f"--{setting}".split("=", 1)]
    command = [sys.executable, script_of(method), "--seed", str(seed), *place, *options, *own]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{spec}, seed {seed}: {done.stderr.strip().splitlines()[-1]}")
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def curve(rows, unit="policy_tokens"):
    """Held-out success at each evaluation, and what was spent until then: two arrays."""
    spent = np.cumsum([row[unit] for row in rows])
    at = [i for i, row in enumerate(rows) if row["eval_success"] is not None]
    return spent[at], np.array([rows[i]["eval_success"] for i in at])


def spent_to(rows, level, unit="policy_tokens"):
    """Spent until held-out success first reaches `level`, interpolated; NaN if it never does."""
    spent, success = curve(rows, unit)
    reached = np.flatnonzero(success >= level)
    if not len(reached):
        return np.nan
    k = reached[0]
    return float(np.interp(level, success[k - 1 : k + 1], spent[k - 1 : k + 1])) if k else 0.0


def area(rows, budget):
    """Mean held-out success over the tokens from 0 to `budget`."""
    spent, success = curve(rows)
    grid = np.linspace(0, budget, 1001)
    return np.interp(grid, spent, success).mean()


def bootstrap(values):
    """Mean over seeds (the last axis is what else there is) and its 95 % interval."""
    values = np.asarray(values, float)
    picks = np.random.default_rng(0).integers(len(values), size=(10_000, len(values)))
    return values.mean(0), *np.percentile(values[picks].mean(1), [2.5, 97.5], axis=0)


def interval(values, form, difference=False):
    """As text; a difference whose interval holds 0 is called none."""
    if missing := np.isnan(values).sum():
        return f"not reached by {missing} of {len(values)}"
    mean, low, high = bootstrap(values)
    none = "none: " if difference and low <= 0 <= high else ""
    return f"{none}{mean:{form}} [{low:{form}}, {high:{form}}]"


def total(rows, key):
    return sum(row[key] for row in rows)


# Column: (value of a run, its format). The first are compared with the first method, too.
RESULTS = {
    "success at the budget": (lambda rows, budget: np.interp(budget, *curve(rows)), ".3f"),
    "area under the curve": (lambda rows, budget: area(rows, budget), ".3f"),
    "tokens to 0.8": (lambda rows, budget: spent_to(rows, 0.8), ",.0f"),
    "episodes to 0.8": (lambda rows, budget: spent_to(rows, 0.8, "episodes"), ",.0f"),
}
COSTS = {
    "success at the start": (lambda rows, _: rows[0]["eval_success"], ".2f"),
    "at the end": (lambda rows, _: rows[-1]["eval_success"], ".2f"),
    "extra passes": (lambda rows, _: total(rows, "extra_passes"), ",.0f"),
    "extra tokens": (
        lambda rows, _: total(rows, "extra_tokens") / total(rows, "policy_tokens"),
        ".0%",
    ),
    "credit time": (lambda rows, _: total(rows, "credit_seconds") / total(rows, "seconds"), ".0%"),
    "seconds": (lambda rows, _: total(rows, "seconds"), ".0f"),
}


def tables(results, budget):
    """Markdown: results, differences to the first method, costs. results: {method: runs}."""

    def table(title, columns, base=None):
        lines = [f"| {title} | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
        for method, runs in results.items():
            cells = []
            for measure, form in columns.values():
                values = np.array([measure(rows, budget) for rows in runs], float)
                if base:
                    values -= [measure(rows, budget) for rows in results[base]]
                cells.append(interval(values, "+" * bool(base) + form, bool(base)))
            if method != base:
                lines.append(f"| {method} | " + " | ".join(cells) + " |")
        return "\n".join(lines)

    first = next(iter(results))
    parts = [table("method", RESULTS), table("method", COSTS)]
    if len(results) > 1:
        parts.insert(1, table(f"difference to {first}", RESULTS, first))
    return "\n\n".join(parts)


def mean_curves(results, budget):
    """{method: (mean, low, high) of held-out success}, at 50 numbers of tokens up to the budget."""
    grid = np.linspace(0, budget, 50)
    return grid, {
        method: bootstrap([np.interp(grid, *curve(rows)) for rows in runs])
        for method, runs in results.items()
    }


def draw(path, results, budget, title):
    """The curves with their bands, as a picture (needs matplotlib, an optional extra)."""
    with explain(f"draw {path}"):
        from matplotlib import pyplot

        grid, curves = mean_curves(results, budget)
        figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
        for k, (method, (mean, low, high)) in enumerate(curves.items()):
            style = "-" if k < 10 else "--"  # there are ten colours
            (line,) = axes.plot(grid / 1000, mean, style, label=method)
            axes.fill_between(grid / 1000, low, high, color=line.get_color(), alpha=0.15, lw=0)
        axes.set(xlabel="thousand policy tokens, extra passes and rollouts included", title=title)
        axes.set(ylabel="success on held-out tasks", ylim=(0, 1))
        axes.legend(frameon=False)
        figure.savefig(path, dpi=120)


def stamp(results):
    """What the figures depend on."""
    packages = ("torch", "transformers", "numpy")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    git = ["git", "-C", HERE, "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"
    panel = next(iter(results.values()))[0][0]["held_out"]
    return f"commit {commit}; {versions}; held-out panel {panel}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--methods", default="grpo,gigpo,graphgpo", help="comma-separated")
    parser.add_argument("--env", default="keydoor")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 1 to this number")
    parser.add_argument("--budget", type=int, help="policy tokens at which success is compared")
    parser.add_argument("--out", type=Path, default=HERE / "runs/compare", help="the runs' folder")
    parser.add_argument("--png", type=Path, help="file for a picture (pip install matplotlib)")
    args, options = parser.parse_known_args()
    methods = args.methods.split(",")
    for spec in methods:
        if not script_of(spec.split(":")[0]).exists():
            parser.error(f"there is no method {spec!r}")
    if args.seeds < 1:
        parser.error("at least one seed is needed")
    # What a kept run must have been asked, too; noted beside its folder, which its script makes.
    asked = re.sub(r"--(iterations|eval.every)[ =]\S+ ?", "", " ".join(options)).strip()
    jobs = [(spec, seed) for seed in range(1, args.seeds + 1) for spec in methods]
    for spec, seed in jobs:
        folder = args.out / args.env / f"{spec}-{seed}"
        note = Path(f"{folder}.options")
        if folder.exists() and note.exists() and (before := note.read_text()) != asked:
            parser.error(f"{folder} had other options, {before or 'none'}: choose another --out")
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(asked)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        calls = [
            pool.submit(run, args.out / args.env / f"{spec}-{seed}", spec, seed,
                        ["--env", args.env, "--eval-every", "5", *options])
            for spec, seed in jobs
        ]  # fmt: skip
        results = {spec: [] for spec in methods}
        for (spec, _), call in zip(jobs, tqdm(calls, "runs")):
            results[spec].append(call.result())
    for spec in methods:
        if "eval_guided" in results[spec][0][-1]:
            guided = [[r | {"eval_success": r.get("eval_guided", r["eval_success"])} for r in rows]
                      for rows in results[spec]]  # fmt: skip
            results[f"{spec} (guided)"] = guided
    spent = [total(rows, "policy_tokens") for runs in results.values() for rows in runs]
    budget = args.budget or min(spent)
    print(tables(results, budget), end="\n\n")
    for method, (mean, *_) in mean_curves(results, budget)[1].items():
        print("".join("▁▂▃▄▅▆▇█"[int(7.99 * value)] for value in mean), method)
    command = f"python compare.py {' '.join(sys.argv[1:])}"
    print(f"\n{args.seeds} seeds, budget {budget:,} policy tokens, made by\n    {command}")
    print(stamp(results))
    if args.png:
        draw(args.png, results, budget, f"{args.env}, {args.seeds} seeds, 95 % intervals")
