"""ALFWorld for gymnasium: a household in text, six types of tasks, games of the official splits.

    gymnasium.make("real/ALFWorld-v0", split="train")          # games: see alfworld_games.HOW
    python -m real_envs.alfworld --make-games 200 --seed 1 DIR # some of one's own, with no download

The text is the stock text environment's, to the letter; then, as in the prompts of published
agents, the admissible commands (`commands=False` leaves them out). The engine is our own.
"""

import argparse
import os
import re
import string
import sys
from pathlib import Path

import gymnasium

from real_envs.alfworld_games import GameError, find_games, make_games

HELD_OUT = 1_000_000  # from this seed on: the games of the held-out split


class ALFWorld(gymnasium.Env):
    """`reset(seed=s)` plays game s of the split, and from 1,000,000 on the held-out split's, both
    counted round and round.

    Two keys for the same moment: `info["state"]` is exact, the set of all facts that some action,
    goal, text or subgoal depends on (where all lies, position and inventory included), and
    `info["text"]` is the game's answer alone, the aliased key that published code compares steps
    by. With `commands=False` it is the observation, too.
    After the end nothing happens any more. What is not admissible (an unknown word, 10 kB of
    anything) is answered "Nothing happens.", costs a turn, and is not `valid`.

    Args:
        split: train, valid_seen, valid_unseen or valid_train: the games of the seeds from 0 on.
        held_out: the split of the seeds from 1,000,000 on.
        games: a folder like ALFWORLD_DATA (the default), or a file of games (.jsonl.xz).
        commands: list the admissible commands in the observation.
        reward: for success; papers have 10.
    """

    instructions = (
        "You are an expert agent operating in the ALFRED Embodied Environment. Each turn you read "
        "what you see and the admissible actions. Reason step by step about the situation within "
        "<think> </think> tags, then choose one admissible action and present it within "
        "<action> </action> tags."
    )
    small_policy = Path(__file__).with_name("alfworld_lm")
    tools = ("go", "take", "move", "open", "close", "use", "heat", "cool", "clean", "slice",
             "examine", "look", "inventory", "help")  # fmt: skip

    def __init__(self, split="train", held_out="valid_unseen", games="", commands=True, reward=1.0):
        text = gymnasium.spaces.Text(max_length=100_000, min_length=0, charset=string.printable)
        self.observation_space = self.action_space = text
        self.source = games or os.environ.get("ALFWORLD_DATA", "")
        if not self.source:
            find_games("", split)
        self.success_reward, self.prerequisites, self.game = float(reward), {}, None
        self.games, self.held_out = (find_games(self.source, s) for s in (split, held_out))
        self.show_commands, self.version = commands, f"{self.games.digest} {self.held_out.digest}"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(len(self.games)))
        games = self.held_out if seed >= HELD_OUT else self.games
        if seed >= HELD_OUT and games is self.games:
            raise GameError("the held-out games would be those to train on: give another `split`")
        number = seed % HELD_OUT % len(games)
        self.game, self.task = games.load(number)
        self.prerequisites, self.path = self.task.prerequisites, games.paths[number]
        self._enter(self.game.start, frozenset())
        return self._observe(self.game.opening()), self._info(self.game.opening(), None)

    def step(self, action):
        if self.game is None:
            raise gymnasium.error.ResetNeeded("step before the first reset")
        over, text = self.won, "Nothing happens."
        operation = None if over else self.operations.get(str(action).strip())
        if operation:
            state = self.game.apply(self.state, operation)
            text = self.game.answer(state, operation)
            self._enter(state, self.seen | self._named(text))
        reward = self.success_reward * (self.won and not over)
        info = self._info(text, operation.command.split()[0] if operation else "")
        return self._observe(text), float(reward), self.won, False, info

    def snapshot(self):
        """The whole position (but for the turns that a TimeLimit counts), to `restore` any time."""
        return self.game, self.task, self.path, self.state, self.seen

    def restore(self, snapshot):
        self.game, self.task, self.path, state, seen = snapshot
        self.prerequisites = self.task.prerequisites
        self._enter(state, seen)

    def distance(self, state=None):
        """Fewest actions from `state` (default: the current one) to success, inf for no way."""
        return self.task.distance(self.state if state is None else state)

    def best_actions(self):
        """The commands that bring success one step nearer."""
        here = self.distance()
        return [
            command
            for command in self.actions
            if self.distance(self.game.apply(self.state, self.operations[command])) < here
        ]

    def _enter(self, state, seen):
        self.state, self.seen, self.operations = state, seen, self.game.commands(state)
        self.actions, self.won = tuple(sorted(self.operations)), self.game.won(state)

    def _named(self, text):
        """Ids of the task's things and lamps that a text names."""
        names = {*re.findall(r"[a-z]+ \d+", text)}
        wanted = (*self.task.things, *self.task.lamps)
        return frozenset(i for i in wanted if self.game.names[i] in names)

    def _facts(self):
        """What holds now and matters: subgoals, and the changing facts that an action, the goal or
        a text reads. Of the past the only one is what was taken from a place that shares its spot
        with another: `look` still says so."""
        game, state, shared = self.game, self.state, self.task.shared_spots
        facts = [game.fact(p, f) for p in game.rules.fluents & game.read for f in state[p]]
        past = [f for f in state.get("not_inreceptacle", ()) if f[1] in shared]
        facts += [game.fact("not_inreceptacle", f) for f in past]
        return frozenset(self.task.subgoals(state, self.seen).union(facts))

    def _observe(self, text):
        if not self.show_commands:
            return text
        listed = "\n ".join(f"'{command}'" for command in self.actions if command != "help")
        return f"{text}\n\nYour admissible actions of the current situation are: [{listed}]."

    def _info(self, text, verb):
        """verb: of the command, "" for none that was understood, None after a reset."""
        facts = self._facts()
        return {
            # Of two things that are looked for it matters which was seen, not only that one was.
            "state": facts | self.seen if self.task.two else facts,
            "text": text,
            "success": self.won,
            "valid": verb != "",
            "actions": self.actions,
            "facts": facts,
            "tool": verb or None,
            "task_type": self.task.type,
            "game": self.path,
            "metrics": {f"success/{self.task.type}": float(self.won)},
        }


def main():
    parser = argparse.ArgumentParser(
        prog="python -m real_envs.alfworld", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--make-games", type=int, required=True, metavar="N", help="training games to make"
    )
    parser.add_argument("--seed", type=int, default=1, help="same seed, same games")
    parser.add_argument("folder", help="where json_2.1.1/ will be: set ALFWORLD_DATA to it")
    args = parser.parse_args()
    if args.make_games < 1:
        parser.error("argument --make-games: must be at least 1")
    try:
        root = make_games(args.make_games, args.seed, args.folder)
    except (GameError, OSError, ImportError) as error:
        parser.error(str(error))
    count = len([*root.glob("*/*/*/game.tw-pddl")])
    print(f"{count} games in {root}; now: export ALFWORLD_DATA={args.folder}")


if __name__ == "__main__":
    sys.exit(main())
