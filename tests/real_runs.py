"""Short runs on ALFWorld and WebShop, in this process, for tests and for smoke_smollm2.py.

Policies that cannot play yet seldom succeed in a few turns. So when a group is trained on, what is
right takes the place of its first rollout: hindsight, replays and past successes have their part.
"""

import importlib
import json
import signal
import sys
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HOUSE), str(HOUSE / "methods")]
import common  # noqa: E402

METHODS = ["grpo", *sorted(p.stem for p in (HOUSE / "methods").glob("*.py"))]
OPTIONS = {  # of the environments: with that many turns all of its tasks can be solved
    "alfworld": {
        "games": str(HOUSE / "tests" / "data" / "alfworld.jsonl.xz"),
        "max_episode_steps": 10,
    },
    "webshop": {"graded": True, "max_episode_steps": 8},
}
NO_GOLD = "its info has no 'gold', the entities to find"
REFUSALS = {  # how a method ends that does not apply
    ("spader", "alfworld"): NO_GOLD,
    ("spader", "webshop"): NO_GOLD,
    ("phgpo", "webshop"): "its info has no 'actions', or after a step no 'tool'",
}
EXTRA = {"gear": "extra_passes", "prover": "extra_steps", "sharpo": "extra_passes"}  # their price


def right_actions(env, seed):
    """Pairs (observation, action) of a success."""
    observation, info = env.reset(seed=seed)
    goal = env.unwrapped.session.goal if hasattr(env.unwrapped, "session") else None
    if goal:
        options = [f"click[{value}]" for value in goal.goal_options.values()]
        way = [f"search[{goal.instruction_text}]", f"click[{goal.asin}]", *options]
        script = iter([*way, "click[buy now]"])
    while not info["success"]:
        action = next(script) if goal else env.unwrapped.best_actions()[0]
        yield observation, action
        observation, *_, info = env.step(action)


def a_success(policy, env, seed, rollout=common.rollout):
    """A rollout that does what is right, with transcript and log-probs as the policy's own."""
    ids, steps = [], []
    for observation, action in right_actions(env, seed):
        opening = policy.opening(env.unwrapped.instructions, observation)
        ids = ids + policy.turn(observation, ids[-1]) if ids else opening
        reply = policy.encode(action)
        steps.append(common.Step(observation, action, tokens=(len(ids), len(ids) + len(reply))))
        ids = ids + reply
    played = common.Episode(seed, steps, token_ids=ids, logprobs=[0.0] * len(ids))
    (episode,) = rollout(policy, [env], prefixes=[(played, len(steps))])
    with common.torch.no_grad():
        logprobs, _ = common.token_logprobs(policy, [played])
    policy.meter["extra_passes"] -= 1  # it stands for the sampling
    for (_, i), logprob in zip(played.action_tokens, logprobs.tolist()):
        episode.logprobs[i] = logprob
    assert episode.success and episode.token_ids == ids
    return episode


def train(method, env, folder, turns=None, **options):
    """Trains as the script does: options in, the rows of metrics.jsonl out."""
    module, plain = importlib.import_module(method), common.rollout
    before = sys.argv, signal.getsignal(signal.SIGINT)
    (folder / "seeds.txt").write_text("0\n")
    world = OPTIONS[env] | ({"max_episode_steps": turns} if turns else {})
    settings = {"env_options": json.dumps(world), "iterations": 2, "eval_every": 2}
    settings |= {"env": env, "eval_seeds": folder / "seeds.txt", "out": folder / "run", **options}

    def rollout(policy, envs, seeds=(), *more, **named):
        if not any(seed < common.TRAIN_SEEDS for seed in seeds):
            return plain(policy, envs, seeds, *more, **named)
        first = {seed: k for k, seed in reversed([*enumerate(seeds)])}.values()
        rest = [k for k in range(len(seeds)) if k not in first]
        episodes = {k: a_success(policy, envs[k], seeds[k], plain) for k in first}
        own = plain(policy, [envs[k] for k in rest], [seeds[k] for k in rest], *more, **named)
        episodes |= zip(rest, own)
        return [episodes[k] for k in range(len(seeds))]

    try:
        common.rollout = rollout
        sys.argv = [f"{method}.py", *(f"--{name}={value}" for name, value in settings.items())]
        module.train(common.parse_args(module.Args))
    finally:
        common.rollout, sys.argv = plain, before[0]
        signal.signal(signal.SIGINT, before[1])
    return [json.loads(row) for row in (folder / "run" / "metrics.jsonl").open()]
