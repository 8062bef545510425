"""GEAR-style: hindsight at every token, and one weight for what follows a departure from it.

After GEAR, 2605.11853; its formulas could not be read, so this file follows the idea, not the text.

    d_j   = KL(pi(. | history) || pi(. | attempt, history))      exact, at each action token j
    g_j   = log pi(y_j | attempt, history) - log pi(y_j | history)
    spike : (d_j - mean(d)) / (std(d) + 1e-6) > spike            over the rollout's action tokens
    segment: from a spike to the next one or to the end of its turn; other tokens stand alone
    w     = 2 sigmoid(sign(A_i) g_first / gap_temperature)       g_first: of the segment's first
    A_j   = A_i ((1 - mix) + mix w)                              A_i: the advantage of grpo.py

Changes against grpo.py: two extra forward passes over the same action tokens, one with a successful
rollout of the same group in the context, and a multiplier for each token. Changes against
sharpo.py: the unit of credit, and that whole distributions are compared.
The paper's: the policy shown a solution is the teacher; where the two diverge, a segment begins,
and the divergence there weighs all of it, since further on they may agree again; elsewhere the
weight is each token's own; the weights reshape GRPO's advantage. Its tasks are maths and tool use.
Our reconstruction, since nothing more is known: every line of the block above. The direction of
the KL, the threshold, how a segment ends, the gap as the signal (d has no sign, so it only places
the segments), the doubled sigmoid, where the sign enters, the attempt (the shortest success other
than the rollout itself; without one w = 1), temperature 1; the last two lines are sharpo.py's.
Where an action is one token, as in KeyDoor, all segments are single tokens and this is SHARPO at
the price of one more pass; the difference begins with longer actions.
Left out: nothing else that is known.

    python methods/gear.py                                      # toy, CPU
    python methods/gear.py --model Qwen/Qwen2.5-0.5B-Instruct --lr 1e-6 --kl 0.01      # one GPU

KeyDoor, 5 seeds: 0.8 of the held-out tasks after 1111 episodes [1081, 1154] (95 %), 102 before GRPO
[68, 136], as SHARPO; but 64 % of the tokens are the two passes'. The command is in the README.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common
from common import Episode, option


@dataclass
class Args(common.Args):
    mix: float = option(0.2, "weight of hindsight in the multiplier; 0 is GRPO")
    gap_temperature: float = option(1.0, "gaps are divided by it before the sigmoid")
    spike: float = option(1.0, "standard deviations above the mean that open a segment, inf: none")
    normalize_std: bool = option(True, "divide by the standard deviation of the group")


def attempt_for(episode, episodes):
    """The shortest successful peer other than the rollout itself, or None."""
    peers = [e for e in episodes if e.task == episode.task and e.success and e is not episode]
    return min(peers, key=lambda e: (len(e.steps), [s.action for s in e.steps]), default=None)


def with_attempt(policy, episode, attempt):
    """The same episode, its transcript beginning with the attempt in the system message."""
    story = "\n".join(f"{step.observation} > {step.action}" for step in attempt.steps)
    system = f"{episode.initial_info['instructions']}\n\nA successful attempt:\n{story}"
    opening = policy.opening(system, episode.steps[0].observation)
    start = episode.steps[0].tokens[0]
    shift = len(opening) - start
    steps = [replace(s, tokens=(s.tokens[0] + shift, s.tokens[1] + shift)) for s in episode.steps]
    return Episode(episode.task, steps, token_ids=opening + episode.token_ids[start:])


def hidden_states(policy, episodes):
    """What the output layer reads to predict each action token, in order: [N, width]. One pass."""
    where = [(row, i - 1) for row, e in enumerate(episodes) for _, i in e.action_tokens]
    policy.meter.update(extra_passes=len(episodes), policy_tokens=len(where))
    ids = pad_sequence([torch.tensor(e.token_ids) for e in episodes], True).to(policy.device)
    with policy.precision:
        hidden = policy.core.base_model(input_ids=ids, use_cache=False).last_hidden_state
    return hidden[tuple(zip(*where))]


@torch.no_grad()
def divergences_and_gaps(policy, episodes, chunk=1024):
    """How far a successful attempt in context moves each token: its distribution, and itself.

    Two more forward passes over each transcript that has a peer to learn from, no gradient; no
    tensor is larger than [chunk, V]. Temperature and logit bias are those of the sampling.
    Returns two lists, d >= 0 and g, float64 [len(token_ids)] per episode, in nats. NaN: a token
    that is not the policy's, or an episode without an attempt (or without room for one).
    """
    divergences, gaps = ([np.full(len(e.token_ids), np.nan) for e in episodes] for _ in range(2))
    taught = []
    for i, e in enumerate(episodes):
        if e.steps and (attempt := attempt_for(e, episodes)):
            taught.append((i, with_attempt(policy, e, attempt)))
    room = policy.core.config.max_position_embeddings
    taught = [(i, e) for i, e in taught if len(e.token_ids) <= room]
    taught.sort(key=lambda pair: len(pair[1].token_ids))
    head, temperature = policy.core.get_output_embeddings(), policy.args.temperature
    for k in range(0, len(taught), policy.args.micro_batch):
        rows, batch = zip(*taught[k : k + policy.args.micro_batch])
        states = [hidden_states(policy, b) for b in ([episodes[i] for i in rows], batch)]
        where = [(i, j, episodes[i].steps[t]) for i in rows for t, j in episodes[i].action_tokens]
        for c in range(0, len(where), chunk):
            part = where[c : c + chunk]
            bias = [j == step.tokens[0] and step.info.get("logit_bias") for _, j, step in part]
            with policy.precision:
                logits = [head(hidden[c : c + chunk]) for hidden in states]
            student, teacher = [common.log_softmax(x, temperature, bias) for x in logits]
            p, change = student.exp(), teacher - student
            kl = -(p * change).masked_fill(p == 0, 0.0).sum(-1)  # a bias of -inf: 0 log 0 is 0
            chosen = [episodes[i].token_ids[j] for i, j, _ in part]
            gap = change[range(len(part)), chosen]
            for (i, j, _), d, g in zip(part, kl.tolist(), gap.tolist()):
                divergences[i][j], gaps[i][j] = d, g
    return divergences, gaps


def segment_starts(episode, divergences, spike=1.0):
    """For each token the first one of its segment, int [len(token_ids)].

    Args: divergences: [len(token_ids)], read at action tokens only; NaN and equal ones: no spike.

    >>> from common import Step
    >>> two_turns = Episode(7, [Step("o", "a", tokens=(1, 5)), Step("o", "a", tokens=(6, 8))])
    >>> two_turns.token_ids = [0] * 8
    >>> segment_starts(two_turns, np.array([np.nan, 0, 5, 0, 0, np.nan, 0, 0])).tolist()
    [0, 1, 2, 2, 2, 5, 6, 7]
    """
    starts, own = np.arange(len(episode.token_ids)), [i for _, i in episode.action_tokens]
    high = np.zeros(len(starts), bool)
    high[own] = common.normalize_within(divergences[own], [0] * len(own)) > spike
    for step in episode.steps:
        turn = np.arange(*step.tokens)
        latest = np.maximum.accumulate(np.where(high[turn], turn, -1))  # the latest spike, if any
        starts[turn] = np.where(latest < 0, turn, latest)
    return starts


def gear_token_advantages(
    episodes, divergences, gaps, mix=0.2, temperature=1.0, spike=1.0, normalize_std=True
):
    """GRPO's advantage, multiplied token by token; the sign stays, the size in 1 - mix .. 1 + mix.

    Args: episodes: any number of groups, in any order; divergences, gaps: as of
        divergences_and_gaps, read at action tokens only; a gap of NaN: no change.
    Returns float64 [len(token_ids)] per episode, 0 at tokens that are not the policy's.

    >>> from common import Step
    >>> pair = [Episode(7, [Step("o", "a", r, tokens=(1, 4))], token_ids=[0] * 4) for r in (1, 0)]
    >>> d, g = np.array([np.nan, 0, 5, 0]), np.array([np.nan, 0, 0.5, 2])
    >>> one, other = gear_token_advantages(pair, [d, d], [g, g])
    >>> [(a / 0.70711).round(3).tolist() for a in (one, other)]
    [[0.0, 1.0, 1.049, 1.049], [0.0, -1.0, -0.951, -0.951]]
    """
    outcomes, tasks = [e.reward for e in episodes], [e.task for e in episodes]
    advantages = common.normalize_within(outcomes, tasks, normalize_std)
    credit = []
    for e, a, d, gap in zip(episodes, advantages, divergences, gaps):
        first = gap[segment_starts(e, d, spike)]
        w = 1 + np.tanh(np.sign(a) * np.nan_to_num(first) / temperature / 2)  # 2 sigmoid(x)
        own = np.isin(np.arange(len(w)), [i for _, i in e.action_tokens])
        credit.append(np.where(own, a * ((1 - mix) + mix * w), 0.0))
    return credit


def train(args):
    run = common.Run(args)
    for _ in run.iterations():
        episodes = common.rollout(run.policy, run.envs, run.next_tasks())
        divergences, gaps = divergences_and_gaps(run.policy, episodes)
        advantages = gear_token_advantages(
            episodes,
            divergences,
            gaps,
            args.mix,
            args.gap_temperature,
            args.spike,
            args.normalize_std,
        )
        metrics = common.update(run, episodes, advantages)
        run.log(episodes, metrics)


if __name__ == "__main__":
    train(common.parse_args(Args))
