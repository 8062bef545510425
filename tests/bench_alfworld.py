"""How fast is ALFWorld? Resets and steps a second, the stock engine beside it, and memory.

    python tests/bench_alfworld.py                                        # the tests' own games
    python tests/bench_alfworld.py ../shared/data/alfworld_games.jsonl.xz
    python tests/bench_alfworld.py GAMES --stock 6        # the same games on the stock engine, too

CPU time of one process and thread. Ours is the whole gymnasium environment: text, admissible
commands in the prompt, facts, exact state. The stock engine is asked for text, commands and facts.
"""

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import gymnasium
from compare_alfworld import Stock, choose, select

import real_envs  # noqa: F401  (registers the environment)
from real_envs.alfworld_games import find_games

HERE = Path(__file__).resolve().parent


def resident():
    """Megabytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def clock(function, *arguments, **options):
    began = time.process_time()
    result = function(*arguments, **options)
    return time.process_time() - began, result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("games", nargs="?", default=str(HERE / "data" / "alfworld.jsonl.xz"))
    parser.add_argument("--split", default="train")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--stock", type=int, default=0, help="games for the stock engine")
    args = parser.parse_args()
    games, before = find_games(args.games, args.split), resident()
    options = {"games": args.games, "split": args.split, "held_out": args.split}
    envs = [
        gymnasium.make("real/ALFWorld-v0", disable_env_checker=True, **options) for _ in range(64)
    ]
    numbers = [k * len(games) // 64 for k in range(64)]
    times = {}
    for env, k in zip(envs, numbers):
        times.setdefault(k, clock(env.reset, seed=k)[0])  # the first one reads the game
    first = sum(times.values()) / len(times)
    steps = taken = 0
    for env, k in zip(envs, numbers):
        rng = random.Random(k)
        for _ in range(args.steps):
            spent, (*_, over, limit, info) = clock(env.step, choose(rng, env.unwrapped.actions))
            steps, taken = steps + spent, taken + 1
            if over or limit:
                break
    memory = resident() - before
    again = sum(clock(env.reset, seed=k)[0] for env, k in zip(envs, numbers)) / 64
    print(f"ours: {len(times)} games, {taken} steps")
    print(f"  first reset of a game  {1e3 * first:8.3f} ms, {1 / first:8.0f} a second")
    print(f"  repeated reset         {1e3 * again:8.3f} ms, {1 / again:8.0f} a second")
    print(f"  step                   {1e3 * steps / taken:8.3f} ms, {taken / steps:8.0f} a second")
    print(f"  64 live environments   {memory:8.1f} MB, the process in all {resident():.0f} MB")
    if args.stock:
        reset = step = count = resets = 0
        for path in select(games, -(-args.stock // 6))[: args.stock]:
            text = games.read(path)
            stock, rng = Stock(text if isinstance(text, str) else text.decode()), random.Random(0)
            spent, state = clock(stock.env.reset)
            reset, resets = reset + spent, resets + 1
            for _ in range(10):
                command = choose(rng, state["admissible_commands"])
                spent, (state, *_) = clock(stock.env.step, command)
                step, count = step + spent, count + 1
                assert state["facts"]
        reset, step, ours = reset / resets, step / count, steps / taken
        print(f"stock: {resets} games, {count} steps")
        print(f"  repeated reset         {1e3 * reset:8.1f} ms, {1 / reset:8.1f} a second")
        print(f"  step                   {1e3 * step:8.1f} ms, {1 / step:8.1f} a second")
        print(f"ours is {reset / again:.0f} times as fast in resets", end="")
        print(f" ({reset / first:.0f} in first ones), {step / ours:.0f} times in steps")


if __name__ == "__main__":
    main()
