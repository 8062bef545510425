"""Makes the small prior-fitted network of t2spo.py, and compares it with the other regressors.

    python methods/pfn/pretrain.py            # 4 minutes on a core; writes the weights, compares
    python methods/pfn/pretrain.py --table    # compares only

The recipe is TabPFN's (2207.01848): draw a regression task from a prior, show some of its rows with
their targets, let the network predict the others, repeat. What it then does with a new context is
the mean of the posterior under that prior. No episode of this project is ever shown to it.
The prior of `draw_tasks`: 1 to 8 inputs that are normal, in steps or binary, often rotated, as an
SVD would; a mixture of five kinds of functions of a few of them (linear, hinges, smooth, steps, and
a condition that switches between two linear ones); a third is bent to have a long tail, as counts
do; noise of 0.03 to 1 standard deviations; and queries that often come from somewhere else.
"""

import argparse
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn import functional
from tqdm import tqdm

sys.path[:0] = [str(Path(__file__).resolve().parents[n]) for n in (1, 2)]
import t2spo  # noqa: E402

import common  # noqa: E402
from audit import ranks, spearman  # noqa: E402

STEPS, LR, LARGEST, QUERIES = 7000, 2e-3, 1000, 64
ROWS = 1024  # of all tasks of an optimizer step together, so that each takes about as long


def standardise(values, n):
    """Values [b, rows, ...] in units of the first n rows."""
    mean, std = values[:, :n].mean(1, keepdim=True), values[:, :n].std(1, keepdim=True)
    return (values - mean) / std.clamp(min=0.1)  # a constant stays one


def functions(z, relevant):
    """Five random functions of the inputs z [b, rows, FEATURES] that matter: [b, rows, 5]."""
    b, rows, size = z.shape
    draw = torch.randn
    used = z * relevant
    linear = used @ draw(b, size, 2)
    hinges = torch.relu(used @ draw(b, size, 12) + draw(b, 1, 12)) @ draw(b, 12, 1)
    waves = used @ draw(b, size, 64) / (1.5 + 3.5 * torch.rand(b, 1, 1))
    smooth = torch.cos(waves + 2 * math.pi * torch.rand(b, 1, 64)) @ draw(b, 64, 1)
    some = relevant.squeeze(1).multinomial(3, replacement=True)[:, None]  # inputs that decide
    sides = (z.gather(2, some.expand(b, rows, 3)) > 0.7 * draw(b, 1, 3)).long()
    cell = sides @ torch.tensor([1, 2, 4])
    steps = draw(b, 8).gather(1, cell)
    switch = torch.where(sides[..., 0] > 0, linear[..., 0], linear[..., 1] + draw(b, 1))
    return torch.stack([linear[..., 0], hinges[..., 0], smooth[..., 0], steps, switch], -1)


def draw_tasks(b, n, m):
    """b tasks: inputs [b, n + m, FEATURES], targets with noise and without, [b, n + m] each."""
    size = t2spo.FEATURES
    z = torch.randn(b, n + m, size)
    coarse, kind = 0.5 + torch.rand(b, 1, size), torch.rand(b, 1, size)
    z = torch.where(kind < 0.25, (z / coarse).round() * coarse, z)
    z = torch.where(kind > 0.8, (z > 1.5 * coarse - 1.5).float(), z)
    z[:, n:] += 0.5 * torch.randn(b, 1, size) * (torch.rand(b, 1, 1) < 0.5)
    live = torch.arange(size) < torch.randint(1, size + 1, (b, 1, 1))
    z = standardise(z, n).clamp(-5, 5) * live
    relevant = (torch.rand(b, 1, size) < 0.6) * live
    relevant[..., 0] = True
    parts = standardise(functions(z, relevant.float()), n)
    parts = torch.softmax(3 * torch.randn(b, 1, 5), -1) * parts
    clean = standardise(parts.sum(-1), n)
    tail = 0.3 + 0.7 * torch.rand(b, 1)
    clean = torch.where(torch.rand(b, 1) < 0.33, ((tail * clean).clamp(max=4)).exp(), clean)
    clean = standardise(clean, n)
    rotation = torch.linalg.qr(torch.randn(b, size, size))[0]
    x = torch.where(torch.rand(b, 1, 1) < 0.6, z @ rotation, z)
    noise = torch.exp(math.log(0.03) - math.log(0.03) * torch.rand(b, 1))
    return standardise(x, n).clamp(-5, 5), clean + noise * torch.randn_like(clean), clean


def pretrain(steps=STEPS):
    network = t2spo.Network()
    optimizer = torch.optim.AdamW(network.parameters(), LR, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, total_steps=steps, pct_start=0.1)
    recent = []
    for step in (bar := tqdm(range(steps), "pretraining", mininterval=10)):
        n = round(math.exp(np.random.uniform(math.log(8), math.log(LARGEST))))
        x, y, clean = draw_tasks(max(ROWS // (n + QUERIES), 2), n, QUERIES)
        center, scale = y[:, :n].mean(1, keepdim=True), y[:, :n].std(1, keepdim=True) + 1e-6
        guess = network(x[:, :n], (y[:, :n] - center) / scale, x[:, n:])
        target = ((clean[:, n:] - center) / scale).clamp(-5, 5)
        loss = functional.smooth_l1_loss(guess, target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        recent = recent[-499:] + [loss.item()]
        if step % 500 == 499:
            bar.write(f"{step + 1} steps: loss {np.mean(recent):.4f}")
    return network


class Mean:
    def fit(self, X, y):
        self.mean = y.mean()

    def predict(self, X):
        return np.full(len(X), self.mean)


class Ridge:
    def fit(self, X, y):
        X, self.center = X - X.mean(0), (X.mean(0), y.mean())
        self.slope = np.linalg.solve(X.T @ X + np.eye(X.shape[1]), X.T @ (y - y.mean()))

    def predict(self, X):
        return (X - self.center[0]) @ self.slope + self.center[1]


def print_row(name, values):
    print(f"| {name:12} |" + "".join(f" {value:7.3f} |" for value in values), flush=True)


def on_synthetic_tasks(regressors, sizes=(10, 20, 40, 80, 160), tasks=200):
    """Mean absolute error on tasks of the prior that pretraining has not seen."""
    torch.manual_seed(1)
    batches = [[part.double().numpy() for part in draw_tasks(tasks, n, QUERIES)] for n in sizes]
    print(f"\nSynthetic tasks, in standard deviations of the target; context sizes {sizes}")
    for name, regressor in regressors.items():
        row = []
        for n, batch in zip(sizes, batches):
            errors = []
            for x, y, clean in zip(*batch):
                regressor.fit(x[:n], y[:n])
                errors.append(np.abs(regressor.predict(x[n:]) - clean[n:]).mean() / clean.std())
            row.append(np.mean(errors))
        print_row(name, row)


def on_keydoor(regressors, sizes=(100, 300, 1000), rounds=6):
    """The support holds the toy LM's successes; the states asked for are those of two more rounds.

    exact: mean |d - exact distance|; own: mean |d - (T - t)| in the new successes; rank: rank
    correlation of d with the exact distance; step: probability that F is larger at a step towards
    the goal than at another one that changed something.
    """
    np.random.seed(1)
    torch.manual_seed(1)
    policy, envs = common.load_policy(common.Args()), common.make_envs("keydoor", 64)
    played = [
        common.rollout(
            policy, envs, np.random.randint(common.TRAIN_SEEDS, size=8).repeat(8).tolist()
        )
        for _ in range(rounds + 2)
    ]
    fresh = played[-2] + played[-1]
    exact, task = [], envs[0].unwrapped
    for e in fresh:
        task.reset(seed=e.task)
        exact.append(np.array([task.distance(step.state) for step in e.steps], float))
    truth, wins = np.concatenate(exact), [e for e in fresh if e.success]
    moved = np.concatenate([[s.state != s.next_state for s in e.steps[:-1]] for e in fresh])
    nearer = np.concatenate([-np.diff(d) for d in exact])[moved] > 0
    left = np.concatenate([len(e.steps) - np.arange(len(e.steps)) for e in wins])
    states = sum(len(e.steps) for batch in played[:-2] for e in batch if e.success)
    print(f"\nKeyDoor: support of {sizes} states out of {states}; {len(truth)} states of "
          f"{len(fresh)} rollouts,\nmean exact distance {truth.mean():.1f}; mean T - t in the "
          f"{len(wins)} successes {left.mean():.1f}")  # fmt: skip
    print(f"| {'':12} |" + "   exact |     own |    rank |    step |" * len(sizes) + " seconds |")
    for name, regressor in regressors.items():
        row = []
        for size in sizes:
            support = t2spo.Support(size, regressor)
            for batch in played[:-2]:
                support.insert(batch)
            began = time.perf_counter()
            distances = support.distances(fresh)
            seconds = time.perf_counter() - began
            d, F = np.concatenate(distances), np.concatenate([-np.diff(d) for d in distances])
            own = np.concatenate([d for d, e in zip(distances, fresh) if e.success])
            row += [np.abs(d - truth).mean(), np.abs(own - left).mean()]
            row += [spearman(d.round(9), truth)]
            above = ranks(F[moved])[nearer].mean() - (nearer.sum() + 1) / 2  # Mann and Whitney
            row += [above / (~nearer).sum()]
        print_row(name, [*row, seconds])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--table", action="store_true", help="compare only, with what is there")
    parser.add_argument("--tabpfn", default="", help="local TabPFN checkpoint, to compare it, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    if not options.table:
        save_file(pretrain().state_dict(), t2spo.WEIGHTS)
    names = ["pfn", "gp", "knn", *(["tabpfn"] if options.tabpfn else [])]
    regressors = {name: t2spo.make_regressor(name, options.tabpfn) for name in names}
    regressors |= {"ridge": Ridge(), "mean": Mean()}
    on_synthetic_tasks(regressors)
    on_keydoor(regressors)
