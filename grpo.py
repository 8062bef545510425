"""GRPO: every token of a rollout gets the same advantage, its outcome compared with its group's.

DeepSeekMath, 2402.03300 (eq. 4 and its outcome supervision), the baseline of all methods here.

    A_i = (R_i - mean_g(R)) / (std_g(R) + 1e-6)        R_i: sum of the step rewards of rollout i
                                                       g: the rollouts of the same task

Statistics are taken once per rollout, as in the paper; the agentic release (verl-agent) takes them
over all step rows of a group by default, so that long rollouts weigh more. normalize_std=False is
the variant without the division (Dr. GRPO, 2503.20783).
Left out: nothing of the credit rule. A group whose outcomes are all equal, or a lone rollout, gives
no signal. Of releases' losses: a second clip for A < 0 (dual clip), and a limit to the KL; the mean
is over all action tokens, not first within each rollout.

    python grpo.py                                              # toy, CPU, under 2 minutes
    python grpo.py --model Qwen/Qwen2.5-0.5B-Instruct --lr 1e-6 --kl 0.01     # one GPU

KeyDoor, 5 seeds: held-out success from 0.16 to 0.8 in 1213 episodes [1160, 1283] (95 %); the
command is in the README.
"""

from dataclasses import dataclass

import numpy as np

import common
from common import option


@dataclass
class Args(common.Args):
    normalize_std: bool = option(True, "divide by the standard deviation of the group")


def grpo_advantages(episodes, normalize_std=True):
    """One advantage per rollout, repeated on its steps.

    Args: episodes: any number of groups, in any order. Returns float64 [len(steps)] per episode.

    >>> from common import Episode, Step
    >>> solved, failed = [Step("o", "a"), Step("o", "a", 1.0)], [Step("o", "a")]
    >>> group = [Episode(7, solved), Episode(7, failed), Episode(7, failed)]
    >>> [a.round(4).tolist() for a in grpo_advantages(group)]
    [[1.1547, 1.1547], [-0.5773], [-0.5773]]
    """
    outcomes, tasks = [e.reward for e in episodes], [e.task for e in episodes]
    advantages = common.normalize_within(outcomes, tasks, normalize_std)
    return [np.full(len(e.steps), a) for e, a in zip(episodes, advantages)]


def train(args):
    run = common.Run(args)
    for _ in run.iterations():
        episodes = common.rollout(run.policy, run.envs, run.next_tasks())
        advantages = grpo_advantages(episodes, args.normalize_std)
        metrics = common.update(run, episodes, advantages)
        run.log(episodes, metrics)


if __name__ == "__main__":
    train(common.parse_args(Args))
