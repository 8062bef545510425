"""The true advantage of each action: exact for a policy in a table, by Monte Carlo for a model.

A(s_t, a_t) = V(after) - V(before), undiscounted, for the policy that played. audit.py compares the
methods' credit with it.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import gymnasium
import numpy as np
import torch
import transformers
from tqdm import tqdm

import common


class Measured(gymnasium.Wrapper):
    """An environment that tells in `info` how far success is, and what rests on what."""

    def tell(self, info):
        distance = getattr(self.unwrapped, "distance", lambda: np.nan)()
        needs = getattr(self.unwrapped, "prerequisites", {})
        return info | {"distance": distance, "prerequisites": needs}

    def reset(self, **options):
        observation, info = self.env.reset(**options)
        return observation, self.tell(info)

    def step(self, action):
        *rest, info = self.env.step(action)
        return *rest, self.tell(info)


WORKER = []  # of a worker process: its policy and its environments


def start_worker(settings, count):
    torch.set_num_threads(1)
    envs = common.make_envs(settings.env, count, settings.env_options)
    WORKER[:] = common.load_policy(settings), envs


def work(job):
    return outcomes(*WORKER, *job)


def in_processes(settings, count):
    """For `estimate`: plays jobs in a process for each core; in one if there is a GPU."""

    def sample(jobs):
        workers = 1 if torch.cuda.is_available() else os.cpu_count()
        begin = {"initializer": start_worker, "initargs": (settings, count)}
        with ProcessPoolExecutor(workers, get_context("spawn"), **begin) as pool:
            return list(tqdm(pool.map(work, jobs), "states", len(jobs)))

    return sample


def outcomes(policy, envs, episode, t, fresh, seed):
    """The outcomes of continuations from before step t, float64 [len(envs)]. `fresh`: the luck of
    the step that led there is drawn anew for each."""
    transformers.set_seed(seed)
    starts = [(episode, t)] * len(envs)
    if fresh:
        for k in range(len(envs)):
            last = replace(episode.steps[t - 1], luck=int(torch.randint(2**62, ())))
            starts[k] = (replace(episode, steps=[*episode.steps[: t - 1], last]), t)
    return np.array([e.reward for e in common.rollout(policy, envs, prefixes=starts)])


def estimate(episodes, picks, slips, count, sample):
    """The true advantages of the picked steps by Monte Carlo; NaN elsewhere.

    Args: picks: pairs (episode index, t); slips: whether moves slip; sample: gives the `count`
        outcomes of each of a list of jobs, the last four arguments of `outcomes`.
    Returns for each episode [4, len(steps)]: mean, standard error, and the mean of either half.
    """
    needed = {(i, t, False) for i, t in picks} | {(i, t + 1, slips) for i, t in picks}
    ends = {key for key in needed if key[1] == len(episodes[key[0]].steps) and not key[2]}
    needed = sorted(needed - ends)
    jobs = [(episodes[i], t, fresh, n) for n, (i, t, fresh) in enumerate(needed)]
    known = dict(zip(needed, sample(jobs)))
    known |= {key: np.full(count, episodes[key[0]].reward) for key in ends}
    truth = [np.full((4, len(e.steps)), np.nan) for e in episodes]
    for i, t in picks:
        after, before = known[i, t + 1, slips], known[i, t, False]
        gain, half = after - before, count // 2
        error = np.sqrt((after.var(ddof=1) + before.var(ddof=1)) / count)
        truth[i][:, t] = gain.mean(), error, gain[:half].mean(), gain[half:].mean()
    return truth


def solve(env, chances, horizon):
    """The truth by dynamic programming over (time, state), for the task of the last reset.

    Args: chances: state -> probability of each action. Returns {state: index}, the probabilities
    [S, A], the values [horizon + 1, S] and the advantages [horizon, S, A].
    """
    index, states, after = {env.state: 0}, [env.state], []
    for state in states:  # grows meanwhile
        running = env.outcome(state) is None
        row = [env.transition(state, a) if running else state for a in env.actions]
        for new in row:
            if index.setdefault(new, len(states)) == len(states):
                states.append(new)
        after.append([index[new] for new in row])
    ends = np.array([np.nan if (r := env.outcome(s)) is None else r for s in states])
    running, moves = np.isnan(ends), [a in ("north", "south", "east", "west") for a in env.actions]
    table = np.array([chances(s) if r else np.eye(len(moves))[0] for s, r in zip(states, running)])
    values = np.tile(np.nan_to_num(ends), (horizon + 1, 1))
    advantages = np.zeros((horizon, *table.shape))
    for t in reversed(range(horizon)):
        q = values[t + 1][np.array(after)]
        if env.slip:
            q[:, moves] += env.slip * (q[:, moves].mean(1, keepdims=True) - q[:, moves])
        values[t, running] = (table * q).sum(1)[running]
        advantages[t] = q - values[t][:, None]
    return index, table, values, advantages


def hasty(env, skill=0.3):
    """A policy: a best action with probability `skill`, and else any."""

    def chances(state):
        ways = [env.distance(env.transition(state, a)) for a in env.actions]
        best = np.array(ways) < env.distance(state)
        return (1 - skill) / len(best) + skill * (
            best / best.sum() if best.any() else 1 / len(best)
        )

    return chances


def walker(env, p):
    """A policy for Fork: always forward, and at a fork the right door with probability p."""

    def chances(state):
        door = env.doors.get(state[0])
        return {None: [1, 0, 0], "left": [0, p, 1 - p], "right": [0, 1 - p, p]}[door]

    return chances


def play_table(env, tasks, policy_of, rng):
    """Episodes by a policy in a table, one per task; with exact advantages [T] and values [T + 1]
    of each."""
    world, horizon, solved, result = env.unwrapped, env.spec.max_episode_steps, {}, []
    for task in tasks:
        observation, info = env.reset(seed=int(task))
        if task not in solved:
            solved = {task: solve(world, policy_of(world), horizon)}
        index, table, values, advantages = solved[task]
        world.np_random, over, t = rng, False, 0
        episode, truth, path = common.Episode(int(task), [], initial_info=info), [], [values[0, 0]]
        while not over:
            at = index[world.state]
            a = int((rng.random() > table[at].cumsum()[:-1]).sum())
            before, state = observation, info["state"]
            observation, reward, ended, limit, info = env.step(world.actions[a])
            step = (before, world.actions[a], float(reward), state, info["state"], info["valid"])
            episode.steps.append(common.Step(*step, info=info))
            truth.append(advantages[t, at, a])
            over, t = ended or limit, t + 1
            path.append(values[t, index[world.state]])
        episode.success, episode.truncated = info["success"], limit and not ended
        episode.final_observation = observation
        result.append((episode, np.array(truth), np.array(path)))
    return zip(*result)
