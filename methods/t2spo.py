"""T2SPO: a step earns what it takes off the remaining distance, as past successes foretell it.

Trajectory-to-Step Policy Optimization, 2610.00388.

    y_t  = T - t                        target of each state of the support: the latest successes
    d_t  = regressor(state before t)    in steps, given the support; 0 after a success
    F_t  = d_t - gamma d_{t+1}          0 at the end of a failure; u = asinh(F)
    c_t  = weight clip(u_t / (rms(u) + 1e-8), -credit_clip, credit_clip)
    A_t  = A_i + c_t                    A_i: the advantage of grpo.py; rms: over all valid steps

Changes against grpo.py: a memory of past successes, and the second term. The order matters: a batch
is scored with the old support and inserted after, so that no rollout foretells itself.
The paper's: all of the above; a pretrained regressor that learns in context (TabPFN) from a frozen
text encoding and step index, standardised and reduced by an SVD fitted on the support alone;
c = 0 where a distance is missing (the support too small, say) or the step changed nothing.
Our reconstruction, since the paper does not say or could not be read: weight, clip, gamma, capacity
and when it is too small; hashed words; 8 features; distances within 0 .. the largest target; `pfn`,
a small network of ours, made as TabPFN is (methods/pfn/pretrain.py); Gaussian process; neighbours;
that a step changed nothing is told by state keys (the paper compares texts).
Known weaknesses, kept. T - t counts detours, so d is too large. F alone would be potential-based
shaping; asinh, rms, clip and mask void its guarantee. c is not centred: most competent steps have F
near 1 and gain (see mean_credit in the log). A_i alone punishes the fatal action of a failure.
Left out: the gate on c, whose definition is unknown (here 1); the variant for PPO; the round of
collection as a feature: all queries are of a newer round than the support, and predict worse by it.

    python methods/t2spo.py                                     # toy, CPU
    python methods/t2spo.py --model Qwen/Qwen2.5-0.5B-Instruct --lr 1e-6 --kl 0.01     # one GPU

KeyDoor, 5 seeds: 0.8 of the held-out tasks after 1118 episodes [1002, 1207] (95 %), 95 before GRPO
[3, 187]; the command is in the README.
"""

import importlib
import re
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common
from common import option

WEIGHTS = Path(__file__).parent / "pfn/pfn.safetensors"
FEATURES = 8  # what a regressor gets to see of a state


@dataclass
class Args(common.Args):
    gamma: float = option(1.0, "discount of the next distance")
    weight: float = option(0.5, "weight of the progress term; 0 is GRPO")
    credit_clip: float = option(3.0, "progress counts up to this many times its rms")
    capacity: int = option(1000, "states in the support; the oldest leave first")
    regressor: Literal["pfn", "gp", "knn", "tabpfn"] = option("pfn", "what foretells distances")
    tabpfn_checkpoint: str = option("", "local TabPFN weights; these need Prior Labs' licence")


class Network(nn.Module):
    """Learns in context: rows are tokens, and every row attends to the context rows alone."""

    def __init__(self, width=64, heads=4, layers=3):
        super().__init__()
        linear, norm = nn.Linear, nn.LayerNorm
        self.x, self.y, self.out = linear(FEATURES, width), linear(1, width), linear(width, 1)
        self.norm, self.layers = norm(width), nn.ModuleList()
        for _ in range(layers):
            attend = nn.MultiheadAttention(width, heads, batch_first=True)
            mlp = norm(width), linear(width, 2 * width), nn.GELU(), linear(2 * width, width)
            self.layers.append(nn.ModuleList([norm(width), attend, nn.Sequential(*mlp)]))

    def forward(self, x, y, queries):
        """x [b, n, FEATURES] and y [b, n], standardised; queries [b, m, FEATURES] -> [b, m]."""
        n, slope = x.shape[1], (x * y[..., None]).mean(1, keepdim=True)
        both = torch.cat([x, queries], 1) * slope.sign()  # each column rises with y, the one that
        order = slope.abs().argsort(-1, descending=True)  # tells most comes first: easier to learn
        rows = self.x(both.gather(2, order.expand_as(both)))
        rows = torch.cat([rows[:, :n] + self.y(y[..., None]), rows[:, n:]], 1)
        for norm, attend, mlp in self.layers:
            normed = norm(rows)
            rows = rows + attend(normed, normed[:, :n], normed[:, :n], need_weights=False)[0]
            rows = rows + mlp(rows)
        return self.out(self.norm(rows[:, n:]))[..., 0]


class PFN:
    """Our prior-fitted network. To fit it is to give it its context: nothing is trained here."""

    def __init__(self):
        self.network = Network()
        self.network.load_state_dict(load_file(WEIGHTS))

    def fit(self, X, y):
        self.center, self.scale = y.mean(), y.std() or 1.0
        self.context = X, (y - self.center) / self.scale

    @torch.no_grad()
    def predict(self, X):
        rows = [torch.from_numpy(np.array(x, np.float32))[None] for x in (*self.context, X)]
        return self.network(*rows)[0].double().numpy() * self.scale + self.center


def squared_distances(X, Z):
    return ((X**2).sum(1)[:, None] + (Z**2).sum(1) - 2 * X @ Z.T).clip(0)


class GP:
    """Gaussian process: RBF kernel of the median distance, the likeliest of a few noise levels."""

    def fit(self, X, y):
        self.X, self.center, squared = X, y.mean(), squared_distances(X, X)
        self.width = 2 * np.median(squared) or 1.0
        values, vectors = np.linalg.eigh(np.exp(-squared / self.width))
        target = vectors.T @ (y - self.center)

        def surprise(noise):  # -2 log evidence at the best overall scale, up to a constant
            spectrum = values.clip(0) + noise
            return len(y) * np.log((target**2 / spectrum).mean() + 1e-12) + np.log(spectrum).sum()

        noise = min((0.001, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0), key=surprise)
        self.weights = vectors @ (target / (values.clip(0) + noise))

    def predict(self, X):
        return np.exp(-squared_distances(X, self.X) / self.width) @ self.weights + self.center


class KNN:
    """The mean of the 8 nearest."""

    def fit(self, X, y):
        self.X, self.y = X, y

    def predict(self, X):
        return self.y[squared_distances(X, self.X).argpartition(7, 1)[:, :8]].mean(1)


def make_regressor(name, checkpoint=""):
    """One by its name; TabPFN from its package and a local file, nothing is downloaded."""
    if name != "tabpfn":
        return {"pfn": PFN, "gp": GP, "knn": KNN}[name]()
    with common.explain("use TabPFN (pip install tabpfn, see --help)"):
        if not Path(checkpoint).is_file():
            raise FileNotFoundError(f"--tabpfn-checkpoint is no file: {checkpoint!r}")
        return importlib.import_module("tabpfn").TabPFNRegressor(model_path=checkpoint)


def hashed_words(text, size=1024):
    """Counts of the words, each told apart by the first word of its clause; a number multiplies the
    word after it. So directions stay with their nouns, and coordinates are numbers. float64 [size].

    >>> np.sort(hashed_words("key 3 east 1 north . goal 2 east"))[-5:].tolist()
    [1.0, 1.0, 1.0, 2.0, 3.0]
    """
    counts, number = np.zeros(size), 1
    for words in map(str.split, re.split(r"[.,:;!?\n]", text.lower())):
        for word in words:
            if not word.isdigit():  # crc32 is the same in every process, hash() is not
                counts[zlib.crc32(f"{words[0]} {word}".encode()) % size] += number
            number = int(word) if word.isdigit() else 1
    return counts


def to_features(context, queries):
    """Both standardised and rotated (SVD) to FEATURES columns of unit variance, or of zeros where
    there are no more. All is fitted on the context [n, k] alone."""
    center, scale = context.mean(0), context.std(0)
    live = scale > 0
    context, queries = [(X[:, live] - center[live]) / scale[live] for X in (context, queries)]
    _, values, axes = np.linalg.svd(context, full_matrices=False)
    found = (values[:FEATURES] > 1e-6).nonzero()[0]
    axes, missing = axes[found].T / values[found] * len(context) ** 0.5, FEATURES - len(found)
    return [np.pad((X @ axes).clip(-5, 5), ((0, 0), (0, missing))) for X in (context, queries)]


class Support:
    """The latest states of successful rollouts. `memory` is all that outlives an iteration, in
    plain values: its rows are (observation, step, steps left: the target), oldest first."""

    def __init__(self, capacity, regressor=None, encode=hashed_words):
        self.capacity, self.regressor, self.encode = capacity, regressor or PFN(), encode
        self.memory = {"rows": []}

    def states(self, episodes):
        steps = [(e, t) for e in episodes for t in range(len(e.steps))]
        return [(e.steps[t].observation, t, len(e.steps) - t) for e, t in steps]

    def insert(self, episodes):
        """Takes in the successes of a batch; what exceeds the capacity leaves, oldest first."""
        rows = self.memory["rows"] + self.states(e for e in episodes if e.success)
        self.memory["rows"] = rows[max(len(rows) - self.capacity, 0) :]

    def distances(self, episodes):
        """Steps left to a success from the state before each step, as the support foretells them:
        float64 [len(steps)] per episode, NaN while it has less than 20 states or 2 rollouts."""
        rows, asked = self.memory["rows"], self.states(episodes)
        left, result = np.array([row[2] for row in rows], float), np.full(len(asked), np.nan)
        if asked and len(rows) >= 20 and (left == 1).sum() >= 2:  # 1: the last state of a rollout
            tables = [[np.append(self.encode(o), t) for o, t, _ in x] for x in (rows, asked)]
            context, queries = to_features(*map(np.array, tables))
            self.regressor.fit(context, left)
            result = np.clip(self.regressor.predict(queries), 0, left.max())
        return np.split(result, np.cumsum([len(e.steps) for e in episodes])[:-1])


def t2spo_advantages(episodes, distances, gamma=1.0, weight=0.5, clip=3.0):
    """One advantage per step: the rollout's plus that of its progress, at most weight * clip.

    Args: episodes: any number of groups, in any order; distances: as of Support.distances.
    Returns float64 [len(steps)] per episode.

    >>> from common import Episode, Step
    >>> win = Episode(7, [Step("o", "a", 0, t, t + 1) for t in range(5)], True)
    >>> t2spo_advantages([win], [np.array([5, 4, 4.2, 2, 1])], weight=1.0)[0].round(4).tolist()
    [0.9081, -0.2047, 1.5761, 0.9081, 0.9081]
    """
    outcomes, tasks = [e.reward for e in episodes], [e.task for e in episodes]
    plain, progress = common.normalize_within(outcomes, tasks), []
    for e, d in zip(episodes, distances):
        gained = d - gamma * np.append(d[1:], 0.0)
        gained[-1:] *= e.success  # the end of a failure: neither gained nor lost
        idle = np.array([step.state == step.next_state for step in e.steps], bool)
        progress.append(np.where(idle | ~np.isfinite(gained), np.nan, np.arcsinh(gained)))
    squares = np.concatenate(progress) ** 2
    unit = np.sqrt(np.nansum(squares) / max(np.isfinite(squares).sum(), 1)) + 1e-8
    return [a + weight * np.nan_to_num(u / unit).clip(-clip, clip) for a, u in zip(plain, progress)]


def train(args):
    support = Support(args.capacity, make_regressor(args.regressor, args.tabpfn_checkpoint))
    run = common.Run(args, support.memory)
    for _ in run.iterations():
        episodes = common.rollout(run.policy, run.envs, run.next_tasks())
        distances = support.distances(episodes)
        support.insert(episodes)  # only now: no rollout foretells itself
        rule = args.gamma, args.weight, args.credit_clip
        advantages = t2spo_advantages(episodes, distances, *rule)
        metrics = common.update(run, episodes, advantages)
        plain = t2spo_advantages(episodes, distances, weight=0.0)
        credit = np.concatenate(advantages) - np.concatenate(plain)
        metrics |= {"support": len(support.memory["rows"]), "mean_credit": float(credit.mean())}
        run.log(episodes, metrics)


if __name__ == "__main__":
    train(common.parse_args(Args))
