"""SPADER: finds are paid at once, rare ones more; rollouts are compared turn by turn.

Step-wise Peer Advantage with Diversity-Aware Exploration Rewards, 2606.00593; checked against the
authors' code (KhanCold/spader).

    r_t  = reward_t + (sum_e (alpha + beta exp(-rarity (N_e - 1))) - query_cost q_t) / |gold|
                                          e: gold entities in the tool's response to step t that
                                             no earlier step of the rollout has found
                                          N_e: rollouts of the task that found e, at least 1
                                          q_t: 1 if step t got a tool's response, else 0
    G_t  = r_t + gamma G_{t+1}                           0 once the rollout is over
    A_t  = (G_t - mean_t(G)) / sqrt(var_t(G) + 1e-6)     over all rollouts of the task, at step t

Changes against grpo.py: the reward of a step and the peers of a step. By the defaults a find is
worth 5 / |gold| if one rollout made it, 2.47 if two did, 1.54 if three, about 1 if all.
GRPO sees the outcome alone, the answer's F1, which is reward_t at the last step.
The paper's: all of the above, alpha 1, beta 4, rarity 1, gamma 0.9, population variance. Finds are
taken from what the tool said, right or wrong answer, and need the gold list: supervision for steps.
Finished rollouts: the authors count them as 0 at later steps, and so do we. Rewards [1] and [0, 1]
at gamma 1 have the same outcome, yet the second rollout gets +1.0 at its second step. This is the
method's remedy for stopping early, and its weakness: whoever goes on alone gets sqrt(n - 1), 2.65
in a group of 8, for any return above 0, however small. alive_only=True compares only the rollouts
that have a step t, and gives 0 there. Either way, different states are compared.
Ours: tool responses are the steps with "found" in their info, empty or not; moves that ask no tool
are steps as well, with q = 0 (the authors count the queries of a call). A rollout without steps is
no peer. The paper's figure gives -1 for a bad format, the authors' code 0: that is
--invalid-penalty 1 or 0, the default.
No setting is grpo.py. With alpha, beta and query_cost 0 and gamma 1, rollouts of equal length with
one reward at the end get its advantage times sqrt(n / (n - 1)), n rollouts in a group.
Left out: matching entities in text (the environment names them); the schedule of the query cost, 0
for 100 updates and then linear to 0.01 in another 100: here it is constant, and 0 by default.

    python methods/spader.py                                    # toy, CPU
    python methods/spader.py --model Qwen/Qwen2.5-0.5B-Instruct --lr 1e-6 --kl 0.01    # one GPU

Forage, 5 seeds: success falls from 0.19 to 0.01, GRPO's ends at 0.80. With gamma 0.9 a find some
moves away is worth less than an early answer; the paper's turns are searches, ours are moves. With
--gamma 1 it ends at 0.80, too. The command is in the README.
"""

import math
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common
from common import option


@dataclass
class Args(common.Args):
    env: str = option("forage", "a registered environment whose info has `gold` and `found`")
    alpha: float = option(1.0, "worth of a find, whoever else made it")
    beta: float = option(4.0, "what a find is worth on top if no peer made it")
    rarity: float = option(1.0, "how fast that fades with the peers that made it")
    query_cost: float = option(0.0, "cost of asking the tool, on the scale of alpha")
    gamma: float = option(0.9, "discount of the step returns")
    alive_only: bool = option(False, "compare only rollouts that have the step, not ended ones")


def spader_rewards(episodes, alpha=1.0, beta=4.0, rarity=1.0, query_cost=0.0):
    """The environment's reward of each step plus the worth of what it found first.

    Args: episodes: any number of groups, in any order, with initial_info["gold"] (all entities to
        find) and info["found"] (those in the tool's response) at the steps that asked the tool.
    Returns float64 [len(steps)] per episode.

    >>> from common import Episode, Step
    >>> start, look = {"gold": ("fig", "oak")}, Step("o", "look", info={"found": ["fig"]})
    >>> both = Step("o", "look", info={"found": ["fig", "oak"]})
    >>> one, two = Episode(7, [look, both], initial_info=start), Episode(7, [look, look])
    >>> two.initial_info = start
    >>> [r.round(4).tolist() for r in spader_rewards([one, two])]  # 2.47 / 2 and 5 / 2
    [[1.2358, 2.5], [1.2358, 0.0]]
    """
    finders, rewards = Counter(), []
    for e in episodes:
        found = {entity for step in e.steps for entity in step.info.get("found", ())}
        finders.update((e.task, entity) for entity in found)
    for e in episodes:
        gold = missing = e.initial_info["gold"] if e.steps else ()
        rewards.append(np.array([step.reward for step in e.steps], float))
        for t, step in enumerate(e.steps):
            if "found" in step.info:
                new = [entity for entity in missing if entity in step.info["found"]]
                missing = [entity for entity in missing if entity not in new]
                peers = [finders[e.task, entity] - 1 for entity in new]
                worth = sum(alpha + beta * math.exp(-rarity) ** n for n in peers)
                rewards[-1][t] += (worth - query_cost) / max(len(gold), 1)
    return rewards


def discounted(rewards, gamma):
    """Discounted sum of the rewards from each step on, float64 [len(rewards)].

    >>> discounted([0.0, 1.0], 0.9).tolist()
    [0.9, 1.0]
    """
    returns, following = np.zeros(len(rewards)), 0.0
    for t in reversed(range(len(rewards))):
        returns[t] = following = rewards[t] + gamma * following
    return returns


def peer_advantages(rewards, tasks, gamma=0.9, alive_only=False):
    """Return of each step against those of the same task at the same step; 0 where all are equal.

    common.normalize_within has other statistics: the authors divide by the population's deviation,
    with 1e-6 inside the root.

    Args: rewards: [steps] per rollout; tasks: a key per rollout; alive_only: rollouts that are over
        are left out, instead of compared as 0. Returns float64 [steps] per rollout.

    >>> [a.round(4).tolist() for a in peer_advantages([[1.0], [0.0, 1.0]], [7, 7], gamma=1.0)]
    [[0.0], [0.0, 1.0]]
    >>> peer_advantages([[1.0], [0.0, 1.0]], [7, 7], gamma=1.0, alive_only=True)[1].tolist()
    [0.0, 0.0]
    """
    advantages, groups = [np.zeros(len(r)) for r in rewards], defaultdict(list)
    for i, task in enumerate(tasks):
        if len(rewards[i]):
            groups[task].append(i)
    for group in groups.values():
        size = len(group), max(len(rewards[i]) for i in group)
        returns = np.full(size, np.nan if alive_only else 0.0)  # NaN: not compared
        for row, i in zip(returns, group):
            row[: len(rewards[i])] = discounted(rewards[i], gamma)
        differ = np.nanmin(returns, 0) < np.nanmax(returns, 0)
        scaled = (returns - np.nanmean(returns, 0)) / np.sqrt(np.nanvar(returns, 0) + 1e-6)
        for row, i in zip(np.where(differ, scaled, 0.0), group):
            advantages[i] = row[: len(rewards[i])]
    return advantages


def spader_advantages(
    episodes, alpha=1.0, beta=4.0, rarity=1.0, query_cost=0.0, gamma=0.9, alive_only=False
):
    """One advantage per step: its return, finds included, against its peers at the same step.

    Args: episodes: as of spader_rewards. Returns float64 [len(steps)] per episode.

    >>> from common import Episode, Step
    >>> finds = [Step("o", "look", info={"found": [kind]}) for kind in ("fig", "oak", "oak")]
    >>> group = [Episode(7, [step], initial_info={"gold": ("fig", "oak")}) for step in finds]
    >>> [a.round(4).tolist() for a in spader_advantages(group)]
    [[1.4142], [-0.7071], [-0.7071]]
    """
    rewards = spader_rewards(episodes, alpha, beta, rarity, query_cost)
    return peer_advantages(rewards, [e.task for e in episodes], gamma, alive_only)


def train(args):
    with common.explain(f"tell finds in the environment {args.env!r}"):
        (env,) = common.make_envs(args.env, 1, args.env_options)
        if "gold" not in env.reset(seed=args.seed)[1]:
            raise ValueError("its info has no 'gold', the entities to find")
    run = common.Run(args)
    for _ in run.iterations():
        episodes = common.rollout(run.policy, run.envs, run.next_tasks())
        advantages = spader_advantages(
            episodes,
            args.alpha,
            args.beta,
            args.rarity,
            args.query_cost,
            args.gamma,
            args.alive_only,
        )
        metrics = common.update(run, episodes, advantages)
        run.log(episodes, metrics)


if __name__ == "__main__":
    train(common.parse_args(Args))
