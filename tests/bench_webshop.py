"""How fast is WebShop? Resets and steps in a second of one core, and the memory of 64 shops.

    python tests/bench_webshop.py [FOLDER of the original's files]

The embedded catalogue is always measured. Half of the sessions buy what is asked for, half click at
random; each step includes text, actions, facts and state key. A search that was made before comes
from memory, as in a group of rollouts; "first searches" are without that.
"""

import random
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from real_envs.webshop import WebShop  # noqa: E402


def sessions(env, count, seed):
    """Seconds of resets, seconds of steps and number of steps, for `count` sessions of <= 15."""
    rng, resets, steps, played = random.Random(seed), 0.0, 0.0, 0
    for k in range(count):
        began = time.process_time()
        _, info = env.reset(seed=rng.randrange(1_000_000))
        resets += time.process_time() - began
        goal, ended = env.session.goal, False
        script = [f"search[{goal.instruction_text}]", f"click[{goal.asin}]"]
        script += [f"click[{v}]" for v in goal.goal_options.values()] + ["click[buy now]"]
        for turn in range(15):
            action = rng.choice(info["actions"]) if k % 2 or turn >= len(script) else script[turn]
            began = time.process_time()
            *_, ended, _, info = env.step(action)
            steps, played = steps + time.process_time() - began, played + 1
            if ended:
                break
    return resets, steps, played


def measure(data):
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    envs = [WebShop(data=data) for _ in range(64)]
    print(f"{data or 'embedded catalogue'}: {time.process_time() - began:.2f} s to make 64")
    for env in envs:
        env.reset(seed=0)
    resets, steps, played = sessions(envs[0], 2000, seed=1)
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"  {2000 / resets:,.0f} resets/s, {played / steps:,.0f} steps/s ({played} steps)")
    queries = {goal.instruction_text for goal in envs[0].shop.goals[:500]}
    began = time.process_time()
    for query in queries:
        envs[0].shop.search(query)
    print(f"  {len(queries) / (time.process_time() - began):,.0f} first searches/s")
    print(f"  {memory:.0f} MB more than before, with 64 environments alive")


if __name__ == "__main__":
    for data in ["", *sys.argv[1:]]:
        measure(data)
