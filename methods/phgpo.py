"""PhGPO: which tool followed which in good rollouts is remembered, and bends the sampling.

Pheromone-Guided Policy Optimization, 2602.13691; formulas of the authors' README.

    pi_beta(a|s,u) = pi(a|s) tau(u,a|x)^beta / Z             u: the tool used before, x: the task
    tau(u,a|x)     = (1 - omega) table + omega bank          omega = task_weight min(1, n / 2)
    bank(u,a|x)    = initial + (high - initial) sum_k sim_k q_k [k used u,a] / sum_k sim_k
                                                             k: the n past rollouts with sim >= 0.25
    table(u,a)    <- clip((1 - evaporation) table + deposit sum_i q_i [i used u,a], low, high)
    A_i            = the advantage of grpo.py                i: the rollouts of this batch

Changes against grpo.py: the rollout samples from pi_beta, and after the update the edges of its
tools are marked. Pheromone is credit (of an edge, over all tasks so far) that acts on exploration
and not on A. The log-probs of the update carry the bias of the rollout, so that both sides of the
ratio are pi_beta; the gradient goes through pi and Z, tau stands still. The bias of a tool is added
at the first token of its name, which must begin the reply and differ from those of the others; a
token that begins no tool has tau = 1. beta=0 is GRPO. metrics.jsonl has success without pheromone
(eval_success: what the network has learnt) and with it (eval_guided: what the table adds).
The paper's: pi_beta, evaporation, deposit, bounds, a table for all tasks and a memory by task, none
on the first step; the values of the options are those of the authors' code.
Our reconstruction, since the paper gives no formula: tau from table and bank, q (1 for a success,
else the environment's info["matched"], else 0), similarity (cosine of the words of the first
observations), one bank of the last 512 rollouts with q >= 0.3. All edges evaporate once a batch,
also those that nobody used; an edge counts once in a rollout; one clip, at the end, so that the
order of rollouts means nothing; steps that used no tool are passed over.
Not copied: the authors' code takes the old log-prob from pi_beta and the new one from pi.
Known weakness, kept. A level settles at 50 sum_i q_i a batch: at 20 as soon as the rollouts of an
edge have 0.4 in all. The table then tells used edges from unused ones; only the bank grades them.
Left out: supervised and mixed stages, the graph of tool descriptions, pheromone on arguments, elite
deposits and replays, confidence and decay of memories, step rewards, epsilon-greedy, schedules.

    python methods/phgpo.py                                     # toy, CPU
    python methods/phgpo.py --model Qwen/Qwen2.5-0.5B-Instruct --lr 1e-6 --kl 0.01     # one GPU

Workshop, 5 seeds: no difference to GRPO in episodes to 0.8 of the held-out tasks, neither without
pheromone (+137 [-3, 260]) nor with it (+9 [-42, 63]). The command is in the README.
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
    env: str = option("workshop", "a registered environment whose steps report their tool")
    beta: float = option(0.7, "strength of the pheromone in sampling; 0 is GRPO")
    evaporation: float = option(0.01, "part of each level that a batch takes away")
    deposit: float = option(0.5, "what a successful rollout adds to each of its edges")
    task_weight: float = option(0.5, "largest weight of the rollouts of similar tasks")
    normalize_std: bool = option(True, "divide by the standard deviation of the group")


def tools_used(episode):
    """The tools of a rollout in order, without the steps that used none: list of str."""
    return [step.info["tool"] for step in episode.steps if step.info.get("tool")]


def quality(episode):
    """q in [0, 1]: 1 for a success, else the matched fraction, where the environment reports it."""
    last = episode.steps[-1].info if episode.steps else {}
    return 1.0 if episode.success else float(last.get("matched", 0.0))


def similarity(text, other):
    """Cosine of two texts as bags of words.

    >>> round(similarity("build red chair", "build red table"), 4)
    0.6667
    """
    a, b = Counter(text.split()), Counter(other.split())
    dot = sum(a[word] * b[word] for word in a)
    return dot and dot / math.sqrt(sum(n * n for n in a.values()) * sum(n * n for n in b.values()))


class Pheromones:
    """Levels of the edges (previous tool, tool). `memory` is all that it has learnt:
    "table": {edge: level}; "unused": the level of all other edges; "bank": [(q, task, edges), ...],
    oldest first; "recalled": what `recall` found since the last update, {task: (omega, scores)}.

    >>> from common import Episode, Step
    >>> saw_glue = [Step("build chair", "saw", info={"tool": "saw"}),
    ...             Step("sawn", "glue", 1.0, info={"tool": "glue"})]
    >>> pheromones = Pheromones()
    >>> pheromones.update([Episode(7, saw_glue, success=True)])
    >>> [round(pheromones.level("saw", tool), 4) for tool in ("glue", "paint")]
    [1.49, 0.99]
    >>> [round(pheromones.level("saw", tool, "build chair"), 4) for tool in ("glue", "paint")]
    [6.1175, 0.9925]
    """

    nearest, worst, capacity = 0.25, 0.3, 512  # similarity, quality and number of the bank's

    def __init__(
        self, initial=1.0, low=0.5, high=20.0, evaporation=0.01, deposit=0.5, task_weight=0.5
    ):
        self.initial, self.low, self.high = initial, low, high
        self.evaporation, self.deposit, self.task_weight = evaporation, deposit, task_weight
        self.memory = {"table": {}, "unused": initial, "bank": [], "recalled": {}}

    def update(self, episodes):
        """One batch: all edges evaporate, then each rollout deposits once on each of its edges."""
        table, unused, bank, _ = self.memory.values()
        deposits, rollouts = defaultdict(list), []
        for e in episodes:
            tools, q = tools_used(e), quality(e)
            edges = sorted(set(zip(tools, tools[1:])))
            for edge in edges:
                deposits[edge].append(q)
            if edges and q >= self.worst:
                rollouts.append((q, e.steps[0].observation, edges))

        def following(level, qualities=()):  # fsum: the same in any order
            level = (1 - self.evaporation) * level + self.deposit * math.fsum(qualities)
            return min(max(level, self.low), self.high)

        levels = dict.fromkeys(deposits, unused) | table
        self.memory["table"] = {u: following(levels[u], deposits.get(u, ())) for u in levels}
        self.memory["unused"] = following(unused)
        self.memory["bank"] = (bank + sorted(rollouts))[-self.capacity :]  # the best leave last
        self.memory["recalled"] = {}

    def recall(self, task):
        """What rollouts of similar tasks say: omega, and {edge: sum sim q [used] / sum sim}."""
        if task not in self.memory["recalled"]:
            bank, used = self.memory["bank"], defaultdict(float)
            sims = {text: similarity(task, text) for text in {text for _, text, _ in bank}}
            near = [(sims[text], q, edges) for q, text, edges in bank if sims[text] >= self.nearest]
            total = sum(sim for sim, _, _ in near)
            for sim, q, edges in near:
                for edge in edges:
                    used[edge] += sim * q
            omega = self.task_weight * min(1, len(near) / 2)
            scores = {edge: value / total for edge, value in used.items()}
            self.memory["recalled"][task] = omega, scores
        return self.memory["recalled"][task]

    def level(self, previous_tool, tool, task=None):
        """tau of an edge; task: its first observation, or None for the table alone."""
        edge = previous_tool, tool
        level = self.memory["table"].get(edge, self.memory["unused"])
        if task is None:
            return level
        omega, scores = self.recall(task)
        bank = self.initial + (self.high - self.initial) * scores.get(edge, 0.0)
        return (1 - omega) * level + omega * bank


def tool_tokens(policy, env):
    """The first token of each tool, {tool: token}; a clear error where that does not do."""
    with common.explain(f"guide the tools of {policy.args.env!r}"):
        _, info = env.reset(seed=0)
        tools, tokens = getattr(env.unwrapped, "tools", info.get("actions")), {}
        if not tools or "tool" not in env.step(tools[0])[-1]:
            raise ValueError("its info has no 'actions', or after a step no 'tool'")
        for tool in tools:
            first = policy.encode(tool)[0]
            if other := next((known for known in tokens if tokens[known] == first), None):
                raise ValueError(f"{other!r} and {tool!r} begin with the same token")
            tokens[tool] = first
    return tokens


def pheromone_guide(pheromones, tokens, beta):
    """The logit_bias of a rollout: episode so far -> {first token of a tool: beta log tau}, or None
    as long as no tool was used."""

    def guide(episode):
        tools = tools_used(episode)
        if not tools:
            return None
        task = episode.steps[0].observation
        level = {tool: pheromones.level(tools[-1], tool, task) for tool in tokens}
        return {token: beta * math.log(level[tool]) for tool, token in tokens.items()}

    return guide


def grpo_advantages(episodes, normalize_std=True):
    """One advantage per rollout, repeated on its steps, as in grpo.py: float64 [len(steps)] each.

    >>> from common import Episode, Step
    >>> pair = [Episode(7, [Step("o", "a", 1.0)]), Episode(7, [Step("o", "b")])]
    >>> [a.round(4).tolist() for a in grpo_advantages(pair)]
    [[0.7071], [-0.7071]]
    """
    outcomes, tasks = [e.reward for e in episodes], [e.task for e in episodes]
    advantages = common.normalize_within(outcomes, tasks, normalize_std)
    return [np.full(len(e.steps), a) for e, a in zip(episodes, advantages)]


def train(args):
    pheromones = Pheromones(
        evaporation=args.evaporation, deposit=args.deposit, task_weight=args.task_weight
    )
    run = common.Run(args, memory=pheromones.memory)
    guide = pheromone_guide(pheromones, tool_tokens(run.policy, run.envs[0]), args.beta)
    for _ in run.iterations():
        episodes = common.rollout(run.policy, run.envs, run.next_tasks(), logit_bias=guide)
        advantages = grpo_advantages(episodes, args.normalize_std)
        metrics = common.update(run, episodes, advantages)
        pheromones.update(episodes)
        run.log(episodes, metrics, guide=guide)


if __name__ == "__main__":
    train(common.parse_args(Args))
