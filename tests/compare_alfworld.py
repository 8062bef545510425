"""Plays the same episodes on ALFWorld's stock engine and on ours, and compares every state.

Needs the stock package (pip install alfworld==0.4.2 gymnasium; it compiles a planner).

    python tests/compare_alfworld.py --games ../shared/data/alfworld_games.jsonl.xz --per-type 9
    python tests/compare_alfworld.py --games FILE --split train valid_unseen --record TRACES

Compared after every reset and step: text, admissible commands in order, won, reward, end, facts.
Each game's walkthrough is played (a shortest way where it has none), then random episodes that
choose the verb first, with 5 % nonsense, and go on after a win. Exit code 1 if anything differs.
"""

import argparse
import contextlib
import hashlib
import json
import lzma
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from real_envs.alfworld_games import Games, read_game

NONSENSE = [
    "go to moon 1",
    "take apple 1 from fridge 1",
    "open drawer 1",
    "",
    "Look",
    " inventory ",
]


def choose(rng, commands):
    """A random command: take, move, open, heat... as often as going somewhere; 5 % nonsense."""
    if rng.random() < 0.05:
        return rng.choice(NONSENSE)
    verbs = defaultdict(list)
    for command in commands:
        verbs[command.split()[0]].append(command)
    rare = sorted(verbs.keys() - {"go", "look", "help", "inventory", "examine"})
    if rare and rng.random() < 0.6:
        verb = rng.choice(rare)
    else:
        verb = "go" if rng.random() < 0.6 else rng.choice(sorted(verbs))
    return rng.choice(verbs[verb])


class Ours:
    """Our engine alone, in the stock engine's terms: it goes on after a win."""

    def __init__(self, text):
        self.game, self.task = read_game(text, "game")

    def _look(self, text):
        self.commands = self.game.commands(self.state)
        won = self.game.won(self.state)
        facts = sorted(self.game.facts(self.state))
        return {"text": text, "commands": sorted(self.commands), "won": won,
                "reward": float(won), "end": won, "facts": facts}  # fmt: skip

    def reset(self):
        self.state = self.game.start
        return self._look(self.game.opening()) | {"reward": 0.0, "end": False}

    def step(self, command):
        operation, text = self.commands.get(command.strip()), "Nothing happens."
        if operation:
            self.state = self.game.apply(self.state, operation)
            text = self.game.answer(self.state, operation)
        return self._look(text)

    def best(self):
        """The first command of a shortest way."""
        after = {c: self.game.apply(self.state, op) for c, op in sorted(self.commands.items())}
        return min(after, key=lambda command: self.task.distance(after[command]))


class Stock:
    """textworld's engine with ALFWorld's wrappers, as its text environment has them."""

    def __init__(self, text):
        arguments, sys.argv = sys.argv, sys.argv[:1]  # the planner reads sys.argv on import
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
        from textworld.envs import PddlEnv

        wanted = {"won": True, "admissible_commands": True, "facts": True, "extras": ["gamefile"]}
        self.env = AlfredInfos(AlfredDemangler(PddlEnv(textworld.EnvInfos(**wanted))))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "game.tw-pddl")
            path.write_text(text)
            self.env.load(str(path))
            self.first = self.env.reset()
        sys.argv = arguments

    def _look(self, state, reward=0.0, end=False):
        return {"text": state["feedback"], "commands": state["admissible_commands"],
                "won": state["won"], "reward": float(reward), "end": end,
                "facts": sorted(str(fact) for fact in state["facts"])}  # fmt: skip

    def reset(self):
        state, self.first = self.first or self.env.reset(), None
        return self._look(state)

    def step(self, command):
        return self._look(*self.env.step(command))


def play(stock, ours, walkthrough, episodes, steps, seed, cpu):
    """Yields (episode, command, the stock engine's look, ours) for every state."""

    def timed(which, function, *arguments):
        began = time.process_time()
        result = function(*arguments)
        cpu[which, function.__name__] += time.process_time() - began
        cpu[which, function.__name__ + "s"] += 1
        return result

    for episode in range(-1, episodes):
        rng, way = random.Random(f"{seed} {episode}"), list(walkthrough or [])
        theirs, mine = timed("stock", stock.reset), timed("ours", ours.reset)
        yield episode, None, theirs, mine
        for t in range(len(way) or 30 if episode < 0 else steps):
            if episode < 0 and not way and mine["won"]:
                break
            planned = (way[t] if way else ours.best()) if episode < 0 else None
            command = choose(rng, mine["commands"]) if planned is None else planned
            theirs, mine = timed("stock", stock.step, command), timed("ours", ours.step, command)
            yield episode, command, theirs, mine


def digest(look):
    """A hash of all but the text."""
    rest = [look[key] for key in ("commands", "won", "reward", "end", "facts")]
    return hashlib.sha256(json.dumps(rest).encode()).hexdigest()[:12]


def select(games, per_type):
    """Paths of the games, at most `per_type` of a task type (all for 0), spread over the split."""
    kinds = defaultdict(list)
    for path in games.paths:
        kinds[path.split("/")[1].split("-")[0]].append(path)
    return [p for ps in kinds.values() for p in ps[:: max(1, len(ps) // (per_type or len(ps)))]
            [: per_type or None]]  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--games", required=True, help="a folder or a file of games")
    parser.add_argument("--split", nargs="+", default=["valid_unseen"], help="one or more")
    parser.add_argument("--per-type", type=int, default=0, help="games of a type, 0: all")
    parser.add_argument("--episodes", type=int, default=1, help="random episodes of a game")
    parser.add_argument("--steps", type=int, default=25, help="steps of a random episode")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--record", help="write the stock engine's episodes to this file")
    args = parser.parse_args()
    splits = [Games(args.games, split) for split in args.split]
    total, cpu, seen, records = Counter(), Counter(), Counter(), []
    for games, path in [(split, p) for split in splits for p in select(split, args.per_type)]:
        text = games.read(path)
        text = text.decode() if isinstance(text, bytes) else text
        ours, states, bad = Ours(text), [], 0
        with contextlib.redirect_stdout(open(os.devnull, "w")):
            stock = Stock(text)
        walkthrough, seed = json.loads(text).get("walkthrough"), f"{args.seed} {path}"
        for episode, command, theirs, mine in play(
            stock, ours, walkthrough, args.episodes, args.steps, seed, cpu
        ):
            different = [key for key in theirs if theirs[key] != mine[key]]
            total["states"] += 1
            bad += bool(different)
            seen[mine["text"].split()[0] + " " + mine["text"].split()[1]] += 1
            for key in different[: 3 if bad < 4 else 0]:
                print(path, episode, command, key, theirs[key], mine[key], sep="\n   ")
            states.append([episode, command, theirs["text"], digest(theirs)])
        total.update(games=1, games_that_differ=bad > 0, states_that_differ=bad)
        records.append({"path": path, "states": states})
        print(total["games"], path.split("/")[1], len(states), bad, flush=True)
    if args.record:
        with lzma.open(args.record, "wt") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
    print(
        {key: total[key] for key in ("games", "states", "games_that_differ", "states_that_differ")}
    )
    print("said:", seen.most_common())
    for what in ("reset", "step"):
        each = {w: 1e3 * cpu[w, what] / cpu[w, what + "s"] for w in ("stock", "ours")}
        print(f"CPU of a {what}: stock {each['stock']:.1f} ms, ours {each['ours']:.3f} ms")
    return total["states_that_differ"] > 0


if __name__ == "__main__":
    sys.exit(main())
