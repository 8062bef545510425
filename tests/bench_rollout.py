"""How fast is the rollout? Against reading the whole transcript again every turn.

    python tests/bench_rollout.py            # about a minute; OMP_NUM_THREADS=1 for a steady figure

Both ways play the same episodes to the last token: the second gets the first one's actions, and its
log-probabilities must agree. Prints tokens a second, the ratio, and the model's share of the time.
"""

import statistics
import sys
import time
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common  # noqa: E402


@torch.no_grad()
def again_every_turn(policy, envs, episodes):
    """Plays the episodes with one fresh pass over all transcripts so far for each turn."""
    for env, episode in zip(envs, episodes):
        env.reset(seed=episode.task)
    worst = 0.0
    for t in range(max(len(e.steps) for e in episodes)):
        rows = [(env, e) for env, e in zip(envs, episodes) if t < len(e.steps)]
        starts = torch.tensor([e.steps[t].tokens[0] for _, e in rows])
        ids = [torch.tensor(e.token_ids[:start]) for (_, e), start in zip(rows, starts)]
        hidden = policy.core.base_model(pad_sequence(ids, True)).last_hidden_state
        logits = policy.core.lm_head(hidden[torch.arange(len(rows)), starts - 1])
        logprobs = logits.log_softmax(-1)
        logprobs.exp().multinomial(1)
        for (env, e), row, start in zip(rows, logprobs, starts.tolist()):
            worst = max(worst, abs(row[e.token_ids[start]].item() - e.logprobs[start]))
            env.step(e.steps[t].action)
    return worst


def main(rounds=3, episodes=64):
    policy = common.load_policy(common.Args())
    envs = common.make_envs("keydoor", episodes)
    in_model, forward = [0.0], policy.core.forward

    def timed(*args, **kwargs):
        began = time.perf_counter()
        out = forward(*args, **kwargs)
        in_model[0] += time.perf_counter() - began
        return out

    policy.core.forward = timed
    ratios = []
    for k in range(rounds + 1):
        torch.manual_seed(k)
        in_model[0], began = 0.0, time.perf_counter()
        played = common.rollout(policy, envs, range(episodes))
        living = time.perf_counter() - began
        share, began = in_model[0] / living, time.perf_counter()
        worst = again_every_turn(policy, envs, played)
        fresh = time.perf_counter() - began
        tokens = sum(len(e.token_ids) for e in played)
        if k:  # the first round warms up
            ratios.append(fresh / living)
            print(
                f"{tokens} tokens: living cache {tokens / living:,.0f}/s, model {share:.0%} of the "
                f"time; fresh pass {tokens / fresh:,.0f}/s; {ratios[-1]:.1f} times faster; "
                f"log-probabilities agree to {worst:.0e}"
            )
    print(f"median: {statistics.median(ratios):.1f} times faster")


if __name__ == "__main__":
    main()
