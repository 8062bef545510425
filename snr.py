"""Signal-to-noise of the credit of one action: against horizon, against density of decisions.

SNR is E[g] / sqrt(E[g g]) for the gradient g of one decision's logit, in amplitude; its square, in
power, is what the number of rollouts goes with. How it falls with T decisions depends on what the
outcome does with them: like 1/T in amplitude if they only shift a chance, like 1/sqrt(T), which is
1/T in power, if they add up or all must be right. So "a hundred times worse at a hundred turns" is
amplitude in the first case and power in the others.

For whole methods SNR is E[c A] / sqrt(E[c c] E[A A]), credit c and true advantage A over all turns:
the same if a turn is a fair coin. If nothing but the actions is left to chance, Var(R) is the sum
of E[A_t A_t] over the turns, so that credit shared by all T turns has exactly 1/sqrt(T), whatever
the density of decisions; credit on the n decisions alone has 1/sqrt(n): sqrt(n/T) is dilution.
Groups of 8, which are their own baseline, have sqrt(7/8) of that.
"""

import json

import numpy as np
from tqdm import tqdm

import common
from truth import Measured, play_table, walker


def print_table(rows):
    """As Markdown; the first row is the head."""
    rows = ["| " + " | ".join(row) + " |" for row in rows]
    print(rows[0], "|---" * (rows[0].count(" | ") + 1) + "|", *rows[1:], sep="\n")


def amplitude(credit, true, power):
    """Per-action signal-to-noise in amplitude: the cosine of credit and truth. power: E[A A]."""
    if not (power > 0 and credit.any()):
        return 0.0
    return float(np.mean(credit * true) / np.sqrt(power * np.mean(credit * credit)))


def fork_snr(length, density, rules, groups, seed):
    """Per-action SNR of each method on Fork, where half of the rollouts succeed: {method: SNR}."""
    options = json.dumps({"length": length, "density": density, "max_episode_steps": length + 1})
    env, rng = Measured(common.make_envs("fork", 1, options)[0]), np.random.default_rng(seed)
    p = 0.5 ** (1 / env.unwrapped.count)
    tasks = rng.integers(common.TRAIN_SEEDS, size=groups).repeat(8)
    episodes, truth, _ = play_table(env, tasks, lambda world: walker(world, p), rng)
    credit = {m: rule(None, [env], episodes) for m, rule in rules.items()}
    at_fork = [np.array([step.action != "forward" for step in e.steps]) for e in episodes]
    credit["grpo, forks only"] = [a * b for a, b in zip(credit["grpo"], at_fork)]
    true = np.concatenate(truth)
    return {m: amplitude(np.concatenate(c), true, np.mean(true * true)) for m, c in credit.items()}


def slope(x, y):
    """Of a line through the logarithms; NaN where something is not positive."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0]) if min(y) > 0 else np.nan


# Outcomes of T binary decisions X, each right with probability p(T): u is uniform in 0..1. The
# closed form is E[g] / sqrt(E[g g]) of g = (X - p) (R - E R), the gradient of one decision's logit.
MODELS = {
    "R = sum X": (lambda T: 0.5, lambda X, u: X.sum(1), lambda T: T**-0.5),
    "R = 1 with probability mean X": (
        lambda T: 0.5, lambda X, u: u < X.mean(1), lambda T: 1 / T
    ),
    "R = all X, half succeed": (
        lambda T: 0.5 ** (1 / T), lambda X, u: X.all(1), lambda T: (2 ** (1 / T) - 1) ** 0.5
    ),
}  # fmt: skip


def signal_to_noise(rules, groups, seed):
    """Closed forms beside the measurement; then each method on Fork."""
    rng, turns, out = np.random.default_rng(seed), (1, 4, 10, 30, 100), {}
    print("\nOne decision of T, exact baseline: SNR in amplitude, closed form / measured\n")
    table = [["outcome", *(f"T = {T}" for T in turns), "slope", "1 to 100, amplitude", "power"]]
    for name, (chance, outcome, closed) in MODELS.items():
        measured = []
        for T in turns:
            X = rng.random((4_000_000 // T if T < 40 else 100_000, T)) < chance(T)
            R = outcome(X, rng.random(len(X))).astype(float)
            g = (X - chance(T)) * (R - R.mean())[:, None]
            measured.append(g.mean() / np.sqrt((g * g).mean()))
        cells = [f"{closed(T):.3f} / {m:.3f}" for T, m in zip(turns, measured)]
        loss = closed(1) / closed(100), measured[0] / measured[-1]
        cells += [f"{slope(turns, measured):+.2f}", "{:.0f}x / {:.0f}x".format(*loss)]
        cells += ["{:.0f}x / {:.0f}x".format(*(x * x for x in loss))]
        table.append([name, *cells])
        out[name] = measured
    print_table(table)
    sweeps = {
        "length, 4 forks": [(length, 4 / length) for length in (8, 16, 32, 64, 128)],
        "density, 64 turns": [(64, density) for density in (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)],
    }
    for name, points in sweeps.items():
        x = [length if name.startswith("length") else density for length, density in points]
        rows = [fork_snr(*point, rules, groups, seed) for point in tqdm(points, name)]
        lines = {m: [row[m] for row in rows] for m in rows[0]}
        lines["closed form, grpo"] = [length**-0.5 for length, _ in points]
        lines["closed form, forks only"] = [(length * rho) ** -0.5 for length, rho in points]
        table = [["credit", *(f"{v:g}" for v in x), "slope, amplitude", "power"]]
        for m, y in lines.items():
            slopes = f"{slope(x, y):+.2f}", f"{2 * slope(x, y):+.2f}"
            table.append([m, *(f"{v:.3f}" for v in y), *slopes])
        print(f"\nFork, SNR in amplitude against {name}\n")
        print_table(table)
        out[name] = {"x": x, **lines}
    return out
