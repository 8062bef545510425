"""Is the credit right? Each method's credit of a step against the true advantage of its action.

    python audit.py                                   # the toy policy on Fork, by Monte Carlo
    python audit.py --model runs/x/model --env keydoor  # the policy of a run, another task
    python audit.py --exact --alias --slip 0.2        # a policy in a table: truth without error
    python audit.py --snr                             # signal-to-noise against horizon and density
    python audit.py --exact --show --png show.png     # one failed and one solved rollout, coloured

The truth is A(s_t, a_t) = V(after) - V(before), undiscounted, for the policy that played. V belongs
to what was played so far, as the policy may remember it: the mean outcome of K continuations from
there (common.rollout's prefixes), shared by the step before and the step after; an end is known. If
moves slip, every continuation draws the step's own luck anew: the truth is the action's, not that
of its luck. Where all steps are too many, a random sample of them is audited.

With --exact a table plays that takes a best action with probability 0.3 and else any, and dynamic
programming over (time, state) gives V. It cannot be shown a peer's attempt: methods that ask the
model are left out. A row shows what V from nine continuations at each state is worth (VinePPO).
SPADER needs a task with finds. PhGPO has no row: its credit is GRPO's, it changes the sampling.

    rank         Spearman with the truth; in failed and in solved rollouts alone
    sign         share of steps with the sign of the truth, where it is 2 standard errors from 0
    coverage     share of steps whose credit is not 0
    SNR          per action, in amplitude: E[c A] / sqrt(E[c c] E[A A]) of credit c and truth A
    blamed, praised   share of progress with credit < 0, of other steps with credit > 0
    time, tokens      of the credit step: ms a rollout; tokens in % of the rollouts' own (T2SPO's
                      count the earlier batch of its support, which training has anyway)

Progress is a shorter distance to success, exact as the task tells it. The waste statistic is the
share of progress among the steps of failed rollouts, and of other steps in solved ones, in groups
with a success. How well two halves of the continuations agree, and what a perfect credit could have
by that (the ceiling), stands above the table, as plain and as rank correlation: where most steps
matter little, noise ranks them. SNR is freed of that noise. [,]: 95 % bootstrap over groups.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parent / "methods"))
import dars
import gear
import gigpo
import graphgpo
import prover
import sharpo
import spader
import t2spo

import common
from grpo import grpo_advantages
from snr import amplitude, print_table, signal_to_noise
from truth import Measured, estimate, hasty, in_processes, play_table


def gear_credit(policy, envs, episodes):
    """Of an action: the mean over its tokens."""
    tokens = gear.gear_token_advantages(episodes, *gear.divergences_and_gaps(policy, episodes))
    spans = [[slice(*step.tokens) for step in e.steps] for e in episodes]
    return [np.array([row[span].mean() for span in turns]) for row, turns in zip(tokens, spans)]


def t2spo_credit(policy, envs, episodes):
    """The support is a batch of earlier rollouts, on other tasks."""
    support = t2spo.Support(capacity=1000)
    support.insert(common.rollout(policy, envs, [e.task + 1 for e in episodes]))
    return t2spo.t2spo_advantages(episodes, support.distances(episodes))


def prover_credit(policy, envs, episodes):
    groups = [[e for e in episodes if e.task == task] for task in {e.task: 0 for e in episodes}]
    proposals = [proposal for group in groups if (proposal := prover.propose(group))]
    return prover.prover_advantages(episodes, prover.verify(policy, envs, proposals))


# Credit of each step from (policy, envs, episodes).
METHODS = {
    "grpo": lambda policy, envs, episodes: grpo_advantages(episodes),
    "gigpo": lambda policy, envs, episodes: gigpo.gigpo_advantages(episodes),
    "graphgpo": lambda policy, envs, episodes: graphgpo.graphgpo_advantages(episodes),
    "graph part": lambda _, envs, episodes: graphgpo.graphgpo_advantages(
        episodes, episode_weight=0
    ),
    "dars": lambda policy, envs, episodes: dars.dars_advantages(
        episodes, [e.initial_info["prerequisites"] for e in episodes]
    ),
    "spader": lambda policy, envs, episodes: spader.spader_advantages(episodes),
    "sharpo": lambda policy, envs, episodes: sharpo.sharpo_advantages(
        episodes, sharpo.hindsight_gaps(policy, episodes)
    ),
    "gear": gear_credit,
    "t2spo": t2spo_credit,
    "prover": prover_credit,
}
INTERVAL = "{:.2f} [{:.2f}, {:.2f}]"
ASK_THE_MODEL = {"sharpo", "gear", "t2spo", "prover"}


def share(hits):
    return float(np.mean(hits)) if len(hits) else np.nan


def progress(episode):
    """Exact distance to success before each step minus after it, [len(steps)]; NaN: no way."""
    infos = [episode.initial_info, *(step.info for step in episode.steps)]
    distances = np.array([info["distance"] for info in infos], float)
    with np.errstate(invalid="ignore"):
        return distances[:-1] - distances[1:]


def waste(episodes, gains):
    """The waste statistic: two shares, (progress in failed, no progress in solved) rollouts.

    Args: gains: [len(steps)] per episode, what each step took off the distance to success.
    """
    solvable, hits = {e.task for e in episodes if e.success}, {False: [], True: []}
    for e, gain in zip(episodes, gains):
        if e.task in solvable:
            hits[e.success].extend((gain > 0) != e.success)
    return [share(hits[success]) for success in (False, True)]


def observed_gains(episodes):
    """What each step took off the distance in the graph of its group's own steps."""
    known = graphgpo.graph_distances(episodes)
    paths = [[known[e.task][node] for node in graphgpo.path(e, "state")] for e in episodes]
    return [-np.diff(path) for path in paths]


def ranks(values):
    """Place of each value in the sorted order, from 1; equal values share their mean place."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (count.cumsum() - (count - 1) / 2)[place]


def spearman(a, b):
    """Rank correlation, ties with their mean rank; 0 where there is no spread.

    >>> round(spearman([1, 2, 2, 9], [1, 3, 2, 4]), 4)
    0.9487
    """
    a, b = ranks(a), ranks(b)
    spread = len(a) and np.ptp(a) and np.ptp(b)
    return float(np.corrcoef(a, b)[0, 1]) if spread else 0.0


def measures(credit, data):
    """All measures of one method. `data` and credit: flat arrays over all steps, see `flatten`."""
    known = np.isfinite(data["true"])
    true, c, solved = data["true"][known], credit[known], data["success"][known]
    sure = np.abs(true) > np.maximum(2 * data["error"][known], 1e-9)
    power = share(data["half 1"][known] * data["half 2"][known])  # of the truth, without error
    gain = data["progress"]
    return {
        "rank": spearman(c, true),
        "failed": spearman(c[~solved], true[~solved]),
        "solved": spearman(c[solved], true[solved]),
        "sign": share(np.sign(c[sure]) == np.sign(true[sure])),
        "coverage": share(credit != 0),
        "SNR": amplitude(c, true, power),
        "blamed": share(credit[gain > 0] < 0),
        "praised": share(credit[~(gain > 0)] > 0),
    }


def flatten(episodes, truth):
    """Flat arrays over all steps. `truth`: [4, len(steps)] per episode, as from `estimate`."""
    keys = ("true", "error", "half 1", "half 2")
    data = dict(zip(keys, np.concatenate(truth, axis=1)))
    data["progress"] = np.concatenate([progress(e) for e in episodes])
    data["success"] = np.concatenate([np.full(len(e.steps), e.success) for e in episodes])
    data["task"] = np.concatenate([np.full(len(e.steps), e.task) for e in episodes])
    return data


def with_intervals(credit, data, resamples=200):
    """{measure: (value, low, high)}, the last two from a bootstrap over groups."""
    members = [np.flatnonzero(data["task"] == task) for task in np.unique(data["task"])]
    rng, again = np.random.default_rng(0), []
    for _ in range(resamples):
        at = np.concatenate([members[k] for k in rng.integers(len(members), size=len(members))])
        again.append(list(measures(credit[at], {k: v[at] for k, v in data.items()}).values()))
    found, again = measures(credit, data), np.array(again)
    for key, column in zip(found, again.T):
        column = column[np.isfinite(column)]
        ends = np.percentile(column, [2.5, 97.5]) if len(column) else (np.nan, np.nan)
        found[key] = found[key], *map(float, ends)
    return found


def exact(args, options):
    """Groups played by a table: environments, episodes, truth as of `estimate`, credit of rows that
    only a table allows."""
    (env,), rng = common.make_envs(args.env, 1, options), np.random.default_rng(args.seed)
    tasks = rng.integers(common.TRAIN_SEEDS, size=args.groups).repeat(args.group_size)
    episodes, truth, values = play_table(Measured(env), tasks, hasty, rng)
    nine = [np.diff(rng.binomial(9, np.clip(v, 0, 1)) / 9) for v in values]
    return None, [env], episodes, [np.array([a, 0 * a, a, a]) for a in truth], {"9 rollouts": nine}


def pair_to_show(episodes):
    """A failed and a solved rollout of one task, the solved one short; () if there are none."""
    pairs = [
        (i, k)
        for i, failed in enumerate(episodes)
        for k, solved in enumerate(episodes)
        if failed.task == solved.task and solved.success and not failed.success
    ]
    return min(pairs, key=lambda pair: len(episodes[pair[1]].steps), default=())


def audit(args, options):
    """Plays groups, asks every method for its credit, then finds the truth.

    Returns the episodes, {method: [len(steps)] per episode}, {method: (ms, % tokens)}, the truth as
    of `estimate`, and the pair of a failed and a solved rollout for --show.
    """
    if args.exact:
        policy, envs, episodes, truth, credit = exact(args, options)
    else:
        settings = common.Args(args.env, options, args.model, temperature=args.temperature)
        policy, count = common.load_policy(settings), args.groups * args.group_size
        envs = [Measured(env) for env in common.make_envs(args.env, count, options)]
        transformers.set_seed(args.seed)
        tasks = np.random.randint(common.TRAIN_SEEDS, size=args.groups).repeat(args.group_size)
        episodes, credit = common.rollout(policy, envs, tasks.tolist()), {}
    own = sum(len(e.action_tokens) for e in episodes)
    costs = dict.fromkeys([*credit, "progress"], (np.nan, np.nan))
    for name in args.methods:
        if name == "spader" and "gold" not in episodes[0].initial_info:
            continue  # it needs a task with finds
        transformers.set_seed(args.seed)
        began, before = time.perf_counter(), policy and policy.meter["policy_tokens"]
        credit[name] = METHODS[name](policy, envs, episodes)
        extra = 100 * (policy.meter["policy_tokens"] - before) / own if policy else 0.0
        costs[name] = 1000 * (time.perf_counter() - began) / len(episodes), extra
    credit["progress"] = [np.nan_to_num(progress(e), posinf=1, neginf=-1) for e in episodes]
    pair = pair_to_show(episodes)
    if args.show and not pair:
        with common.explain("show two rollouts"):
            raise ValueError("no task has both a failed and a solved one; more --groups may help")
    if not args.exact:
        of = pair if args.show else range(len(episodes))
        steps = [(i, t) for i in of for t in range(len(episodes[i].steps))]
        np.random.default_rng(args.seed).shuffle(steps)
        steps = steps if args.show else steps[: args.steps]
        slips, count = getattr(envs[0].unwrapped, "slip", 0.0) > 0, args.continuations
        truth = estimate(episodes, steps, slips, count, in_processes(settings, count))
    return episodes, credit, costs, truth, pair


def report(name, found):
    """Prints what one condition (clean, alias, slip) gave; returns it for --out."""
    episodes, credit, costs, truth, _ = found
    data = flatten(episodes, truth)
    known = np.isfinite(data["true"])
    halves = [data[half][known] for half in ("half 1", "half 2")]
    with np.errstate(invalid="ignore"):  # too few steps, or all alike
        rank, plain = spearman(*halves), float(np.corrcoef(*halves)[0, 1])
    rows = {m: with_intervals(np.concatenate(c), data) for m, c in credit.items()}
    summary = {
        "episodes": len(episodes),
        "success": share([e.success for e in episodes]),
        "steps": len(known),
        "audited": int(known.sum()),
        "spread of the truth": float(data["true"][known].std()),
        "its standard error": float(data["error"][known].mean()),
        "halves agree": (plain, rank),
        "ceiling": [max(2 * r / (1 + r), 0.0) ** 0.5 for r in (plain, rank)],
        "waste, exact": waste(episodes, [progress(e) for e in episodes]),
        "waste, as observed": waste(episodes, observed_gains(episodes)),
    }
    print(f"\n{name}:", ", ".join(f"{k} {np.round(v, 3)}" for k, v in summary.items()), "\n")
    table = [["credit", *rows["progress"], "time", "tokens"]]
    for method, row in rows.items():
        cost = ("" if np.isnan(value) else f"{value:.1f}" for value in costs[method])
        table.append([method, *(INTERVAL.format(*cell) for cell in row.values()), *cost])
    print_table(table)
    return summary | {"methods": rows, "costs": costs}


def show(found, png):
    """One failed and one solved rollout of a task, step by step, coloured by credit."""
    episodes, credit, _, truth, pair = found
    columns = {"truth": [x[0] for x in truth], "progress": credit["progress"], **credit}
    size = {k: max(np.abs(np.concatenate([c[i] for i in pair])).max(), 1e-9)
            for k, c in columns.items()}  # fmt: skip
    width = max(map(len, columns)) + 1
    for i in pair:
        e = episodes[i]
        print(f"\n{'solved' if e.success else 'failed'}, task {e.task}")
        print(" " * 14 + "".join(f"{k:>{width}}" for k in columns))
        for t, step in enumerate(e.steps):
            line = f"{t:3} {step.action.strip()[:10]:10}"
            for k, c in columns.items():
                pale = int(255 * (1 - min(abs(c[i][t]) / size[k], 1)))
                red, green, blue = (pale, 255, pale) if c[i][t] > 0 else (255, pale, pale)
                line += f"\033[30;48;2;{red};{green};{blue}m{c[i][t]:{width}.2f}\033[0m"
            print(line)
    if png:
        from matplotlib.figure import Figure

        figure = Figure((2 + 0.9 * len(columns), 9), layout="constrained")
        for axes, i in zip(figure.subplots(1, 2), pair):
            e = episodes[i]
            cells = np.array([c[i] / size[k] for k, c in columns.items()]).T
            axes.imshow(cells, "PiYG", vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
            axes.set_title("solved" if e.success else "failed")
            axes.set_xticks(range(len(columns)), columns, rotation=90)
            labels = [f"{t}  {step.action.strip()[:10]}" for t, step in enumerate(e.steps)]
            axes.set_yticks(range(len(labels)), labels, fontsize=7)
            axes.set_ylim(
                max(len(episodes[k].steps) for k in pair) - 0.5, -0.5
            )  # first step on top
        figure.suptitle("green: praised, pink: blamed; each column to its own scale")
        figure.savefig(png, dpi=150)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = common.Args()
    parser.add_argument("--model", default=default.model, help="folder, hub name or .gguf file")
    parser.add_argument("--env", help="default fork; keydoor with --exact")
    parser.add_argument("--env-options", help='JSON, default {}; with --exact {"size": 4}')
    parser.add_argument("--methods", help="comma-separated, default all of " + ",".join(METHODS))
    parser.add_argument("--groups", type=int, help="tasks, default 16; 60 with --exact or --snr")
    parser.add_argument("--group-size", type=int, default=8, help="rollouts of a task")
    parser.add_argument("--steps", type=int, default=300, help="audited steps, drawn at random")
    parser.add_argument("--continuations", type=int, default=128, help="from each state")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--exact", action="store_true", help="a policy in a table, exact truth")
    parser.add_argument("--alias", action="store_true", help="also with hidden inventory")
    parser.add_argument("--slip", type=float, default=0.0, help="also with moves that slip")
    parser.add_argument("--snr", action="store_true", help="the Fork experiment, and nothing else")
    parser.add_argument("--show", action="store_true", help="two rollouts, step by step")
    parser.add_argument("--png", help="file of a picture of what --show shows")
    parser.add_argument("--out", type=Path, help="JSON file of all results, must not exist")
    args = parser.parse_args()
    table = args.exact or args.snr
    args.groups = args.groups or (60 if table else 16)
    args.env = args.env or ("keydoor" if table else "fork")
    args.env_options = args.env_options or (
        '{"size": 4}' if args.exact and args.env == "keydoor" else "{}"
    )
    usable = [m for m in METHODS if not (table and m in ASK_THE_MODEL)]
    args.methods = args.methods.split(",") if args.methods else usable
    for method in args.methods:
        if method not in usable:
            parser.error(f"there is no method {method!r} here, only {', '.join(usable)}")
    if args.out and args.out.exists():
        parser.error(f"{args.out} exists")
    return args


if __name__ == "__main__":
    args = parse_args()
    if args.png:
        with common.explain("draw --png (pip install matplotlib)"):
            import matplotlib  # noqa: F401
    if args.snr:
        rules = {m: METHODS[m] for m in args.methods if m != "spader"}
        results = signal_to_noise({"grpo": METHODS["grpo"], **rules}, args.groups, args.seed)
    else:
        conditions = {"clean": {}, "alias": {"alias": True}, "slip": {"slip": args.slip}}
        results = {}
        for name, extra in conditions.items():
            if name == "clean" or getattr(args, name):
                options = json.dumps(json.loads(args.env_options) | extra)
                found = audit(args, options)
                if args.show:
                    show(found, args.png)
                    break
                results[name] = report(name, found)
        if len(results) > 1:
            print("\nrank with the truth:\n")
            table = [["credit", *results]]
            for m in results["clean"]["methods"]:
                ranks = [result["methods"][m]["rank"] for result in results.values()]
                table.append([m, *(INTERVAL.format(*rank) for rank in ranks)])
            print_table(table)
    if args.out:
        args.out.write_text(json.dumps({"command": sys.argv, "results": results}, indent=1))
