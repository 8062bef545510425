import sys
from pathlib import Path

import numpy as np
import pytest
import torch

HOUSE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HOUSE), str(HOUSE / "methods")]

import common  # noqa: E402

torch.set_num_threads(1)


def walk(task, path, reward=0.0, success=None, **fields):
    """An episode through the states of `path` ("ABG"), with its whole reward at the last step."""
    steps = [
        common.Step(observation=f"at {a}", action=f"to {b}", state=a, next_state=b)
        for a, b in zip(path, path[1:])
    ]
    if steps:
        steps[-1].reward = float(reward)
    success = reward > 0 if success is None else success
    return common.Episode(task, steps, success, final_observation=f"at {path[-1]}", **fields)


def random_groups(seed, tasks=4):
    """Ragged groups of random walks over a few states, with all kinds of outcomes."""
    rng = np.random.default_rng(seed)
    episodes = []
    for task in range(tasks):
        for _ in range(rng.integers(1, 7)):
            path = "".join(rng.choice(list("ABCDE"), rng.integers(2, 9)))
            episode = walk(task, path, reward=rng.choice([0.0, 0.0, 1.0, 10.0]))
            for step in episode.steps[:-1]:
                step.reward = float(rng.choice([0.0, 0.0, -0.1]))
            episodes.append(episode)
    return [episodes[i] for i in rng.permutation(len(episodes))]


@pytest.fixture(autouse=True)
def the_same_chance():
    """No test depends on what ran before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def toy_args():
    return common.Args()


@pytest.fixture
def policy(toy_args):
    return common.load_policy(toy_args)


@pytest.fixture(scope="session")
def envs():
    return common.make_envs("keydoor", 8)
