"""ProVer: guess which few turns of a rare success decided it, and pay them what replaying proves.

Propose, Verify, credit: Targeting Pivotal Decisions, 2609.36178.

    A_i   = R_i - mean_g(R)                                      grpo.py without the division
    Delta = mean(R | from `end`) - mean(R | from `start`)        `continuations` of each, by the
                                                                 current policy, from that step
    A_t   = A_i + weight max(0, Delta)                           only start <= t < end of a success

Changes against grpo.py: where successes are rare, a segment of the shortest one is proposed, and
the policy plays on from the states before and after it. If it succeeds more often after it, the
segment's steps get the difference. Continuations are not trained on; the log counts them as extra
tokens and steps.
The paper's: all of the above; 1 to 3 successes of 8; at most 4 turns, not the last one, no invalid
action; 8 continuations; weight 1; a judge that is asked again up to 3 times; random segments as
the ablation.
Our reconstruction: eligible by the same share, 0 < successes <= 3/8 of the group; the default
proposer, a rule that needs no judge (the paper's is a language model) and looks where success and
failure part; the judge's prompt. R is the return, so that rewards inside the segment count.
Known weaknesses. With 8 continuations at V = 1/2 the standard error of Delta is 0.25, and keeping
only what is positive pays segments without effect, too: 0.098 on average, 40 % of them (`chance`).
So the log has verified_positive beside chance_positive, for 0/1 outcomes at the groups' success
rates: where all continuations fail, both sides tie, and the rate can be below that.
Left out: the judge's tools for searching long rollouts; it reads one shortened text.

    python methods/prover.py                                    # toy, CPU
    python methods/prover.py --judge Qwen/Qwen2.5-7B-Instruct                          # one GPU
    python methods/prover.py --model Qwen/Qwen2.5-0.5B-Instruct --lr 1e-6 --kl 0.01    # one GPU

Fork, 5 seeds: 0.8 of the held-out tasks 21 episodes after GRPO [3, 39] (95 %), and 17 % of its
tokens are continuations; 89 % of its segments are verified (chance 38 %). Command: README.
"""

import math
import re
import sys
from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Literal

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common
from common import option


@dataclass
class Args(common.Args):
    env: str = option("fork", "a registered environment, by its id or its bare name")
    proposer: Literal["contrastive", "random"] = option("contrastive", "how segments are chosen")
    judge: str = option("", "a chat model that chooses them instead: folder, hub name or .gguf")
    max_length: int = option(4, "longest segment, in steps")
    continuations: int = option(8, "replays from either end of a segment")
    weight: float = option(1.0, "weight of the verified difference; 0 is GRPO without std")


def candidates(group, max_length=4):
    """The shortest success of an eligible group, and the segments that may be proposed.

    Args: group: the episodes of one task. Returns (episode, [(start, end), ...]), half-open,
    shortest first, then earliest; (None, []) for a group that is not eligible.
    """
    played = [e for e in group if e.steps]
    won = [e for e in played if e.success]
    if not 0 < len(won) <= 3 / 8 * len(played):
        return None, []
    # Among equally short ones not the first of the list: its order must not matter.
    episode = min(won, key=lambda e: (len(e.steps), [step.action for step in e.steps]))
    last = len(episode.steps) - 1  # never part of a segment
    spans = [(t, t + n) for n in range(1, max_length + 1) for t in range(last - n + 1)]
    return episode, [span for span in spans if all(s.valid for s in episode.steps[slice(*span)])]


def propose(group, max_length=4):
    """The segment across which success and failure part: (episode, start, end), half-open, or None.

    Its score is P(success | visited the state after it) - P(success | visited the one before),
    each (successes + 1) / (visitors + 2) among the group's rollouts.

    >>> from common import Episode, Step
    >>> def walk(path):
    ...     steps = [Step(a, b, state=a, next_state=b) for a, b in zip(path, path[1:])]
    ...     return Episode(7, steps, success=path[-1] == "G")
    >>> propose([walk("ABCDG"), walk("ABXD"), walk("ABX")])[1:]  # 2/3 at C, 2/5 at B
    (1, 2)
    """
    episode, segments = candidates(group, max_length)
    visits, wins = Counter(), Counter()
    for e in group:
        states = {s.state for s in e.steps} | {s.next_state for s in e.steps}
        visits.update(states)
        wins.update(states if e.success else ())

    def score(segment):
        states = [episode.steps[t].state for t in segment]
        before, after = [Fraction(wins[s] + 1, visits[s] + 2) for s in states]
        return after - before  # exact, so that ties are ties

    return (episode, *max(segments, key=score)) if segments else None


def propose_random(group, max_length=4):
    """Any segment, each as likely: (episode, start, end), half-open, or None."""
    episode, segments = candidates(group, max_length)
    return (episode, *segments[np.random.randint(len(segments))]) if segments else None


def question(group, episode, max_length=4):
    """What the judge reads: the success turn by turn, the failures by what they did."""
    turns = [
        f"{t}. {shorten(s.observation, 200)} > {shorten(s.action, 80)}"
        for t, s in enumerate(episode.steps, 1)
    ]
    failures = [
        f"- {shorten(', '.join(s.action for s in e.steps), 400)}; in the end: "
        + shorten(e.final_observation or "", 200)
        for e in group
        if e.steps and not e.success
    ]
    lines = [f"The task: {episode.initial_info.get('instructions', '')}"]
    lines += ["", "This attempt succeeded:", *turns, "", "These failed:", *failures, ""]
    lines += [
        f"Which 1 to {max_length} turns in a row of the success avoided what went wrong in the "
        f"failures? Take as few as you can, and not turn {len(turns)}. Answer with two numbers and "
        "nothing else, those of the first and the last of these turns, for example: 2 3"
    ]
    return "\n".join(lines)


@torch.no_grad()
def ask(judge, group, max_length=4, retries=3):
    """The segment that a chat model names: (episode, start, end), half-open, or None.

    An answer that is not two numbers, or not a segment that may be proposed, is asked again.
    """
    episode, segments = candidates(group, max_length)
    if not segments:
        return None
    chat = [("user", question(group, episode, max_length))]
    for _ in range(1 + retries):
        ids = torch.tensor([judge.encode(judge.render(*chat))], device=judge.device)
        with judge.precision:
            reply = judge.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=judge.args.max_new_tokens,
                pad_token_id=judge.tokenizer.eos_token_id,
            )[0]
        judge.meter["tokens"] += len(reply)  # read and written
        answer = judge.tokenizer.decode(reply[ids.shape[1] :], skip_special_tokens=True)
        numbers = [int(number) for number in re.findall(r"\d+", answer)]
        # The judge counts turns from 1 and includes the last: 2 3 are the steps 1 <= t < 3.
        if len(numbers) == 2 and (numbers[0] - 1, numbers[1]) in segments:
            return episode, numbers[0] - 1, numbers[1]
        again = f"Two numbers: at most {max_length} turns, before turn {len(episode.steps)}, all "
        chat += [("assistant", answer or "-"), ("user", again + "of them understood by the task.")]
    return None


def verify(policy, envs, proposals, continuations=8):
    """What the policy gains across each segment: (episode, start, end, Delta).

    All of them are played together, `continuations` times from either end.
    """
    prefixes = [(e, t) for e, *span in proposals for t in span for _ in range(continuations)]
    returns = [e.reward for e in common.rollout(policy, envs, prefixes=prefixes)]
    means = np.reshape(returns, (-1, 2, continuations)).mean(-1)
    return [(*p, float(after - before)) for p, (before, after) in zip(proposals, means)]


def prover_advantages(episodes, verified, weight=1.0):
    """One advantage per rollout, without std, plus what its verified segment gains.

    Args: episodes: any number of groups, in any order; verified: (episode, start, end, Delta) of
        some of them, as from `verify`. Returns float64 [len(steps)] per episode.

    >>> from common import Episode, Step
    >>> group = [Episode(7, [Step("o", "a"), Step("o", "a", 1.0)]) for _ in range(2)]
    >>> group += [Episode(7, [Step("o", "b")]) for _ in range(6)]
    >>> one, other, *failed = prover_advantages(group, [(group[0], 0, 1, 6 / 8 - 2 / 8)])
    >>> one.tolist(), other.tolist(), failed[0].tolist()
    ([1.25, 0.75], [0.75, 0.75], [-0.25])
    """
    outcomes, tasks = [e.reward for e in episodes], [e.task for e in episodes]
    advantages = common.normalize_within(outcomes, tasks, std=False)
    credit = [np.full(len(e.steps), a) for e, a in zip(episodes, advantages)]
    for e, a in zip(episodes, credit):
        for proposed, start, end, delta in verified:
            if proposed is e and delta > 0:
                a[start:end] += weight * delta
    return credit


def chance(p, continuations=8):
    """What a segment without effect gives, success being p at both ends: P(Delta > 0) and
    E[max(0, Delta)], for Delta the difference of two binomial means.

    >>> [[round(float(x), 3) for x in chance(p)] for p in (0.1, 0.25, 0.5)]
    [[0.323, 0.055], [0.385, 0.084], [0.402, 0.098]]
    """
    k = np.arange(continuations + 1)
    pmf = [math.comb(continuations, i) * p**i * (1 - p) ** (continuations - i) for i in k]
    joint, delta = np.outer(pmf, pmf), np.subtract.outer(k, k) / continuations
    return joint[delta > 0].sum(), (joint * delta.clip(0)).sum()


def verification(episodes, verified, continuations=8):
    """How the proposals of a batch fared, beside segments without effect: {name: mean or None}."""
    names = "segment_length", "verified_positive", "verified_gain", "chance_positive", "chance_gain"
    rows = []
    for proposed, start, end, delta in verified:
        rate = np.mean([e.success for e in episodes if e.steps and e.task == proposed.task])
        rows.append((end - start, delta > 0, max(0.0, delta), *chance(rate, continuations)))
    means = np.mean(rows, 0).tolist() if rows else [None] * len(names)
    return {"proposals": len(rows), **dict(zip(names, means))}


def train(args):
    rule = propose if args.proposer == "contrastive" else propose_random
    if args.judge:
        judge = common.load_policy(replace(args, model=args.judge, lora_rank=0, kl=0.0))
        rule = partial(ask, judge)
    run = common.Run(args)
    for _ in run.iterations():
        episodes = common.rollout(run.policy, run.envs, run.next_tasks())
        groups = [[e for e in episodes if e.task == task] for task in {e.task: 0 for e in episodes}]
        proposals = [rule(group, args.max_length) for group in groups]
        proposals = [proposal for proposal in proposals if proposal]
        verified = verify(run.policy, run.envs, proposals, args.continuations)
        advantages = prover_advantages(episodes, verified, args.weight)
        metrics = common.update(run, episodes, advantages)
        metrics |= verification(episodes, verified, args.continuations)
        if args.judge:
            metrics["judge_tokens"] = judge.meter.pop("tokens", 0)
        run.log(episodes, metrics)


if __name__ == "__main__":
    train(common.parse_args(Args))
