"""What the toy tasks share: a text interface for gymnasium, and exact distances to success.

A task is a small deterministic machine. It says how it is laid out (`layout`), what an action does
(`transition`), when and how well it ends (`outcome`), what the agent reads (`describe`) and which
`facts` hold. `state` is hashable and complete, so that breadth-first search gives the truth.
"""

import math
import string
from collections import deque
from pathlib import Path

import gymnasium

DIRECTIONS = {"north": (0, -1), "south": (0, 1), "east": (1, 0), "west": (-1, 0)}


def bearing(origin, target):
    """Where `target` lies as seen from `origin`, in words: "2 east 1 north", or "here"."""
    east, south = target[0] - origin[0], target[1] - origin[1]
    words = [f"{abs(east)} {'east' if east > 0 else 'west'}"] if east else []
    words += [f"{abs(south)} {'south' if south > 0 else 'north'}"] if south else []
    return " ".join(words) or "here"


def chain(*facts):
    """Prerequisites of facts that can only come true one after the other."""
    return {fact: facts[max(i - 1, 0) : i] for i, fact in enumerate(facts)}


class GridWorld(gymnasium.Env):
    """Text in, text out. `reset(seed=s)` fixes the task wholly: same seed, same task.

    Chance (`slip`: the probability that a move goes in a random direction) comes from
    `np_random`, gymnasium's own generator; replace it after the reset to give the members of a
    group the same task and different luck.
    """

    actions: tuple[str, ...] = ()
    instructions = ""
    small_policy = Path(__file__).with_name("toy_lm")
    prerequisites: dict[str, tuple[str, ...]] = {}

    def __init__(self, slip=0.0):
        self.slip = slip
        text = gymnasium.spaces.Text(max_length=10_000, min_length=0, charset=string.printable)
        self.observation_space = self.action_space = text

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.layout()
        self._distances = {}
        return self.describe(), self.info()

    def step(self, action):
        done = action
        if action in DIRECTIONS and self.slip and self.np_random.random() < self.slip:
            done = list(DIRECTIONS)[self.np_random.integers(4)]
        if action in self.actions and self.outcome(self.state) is None:
            self.state = self.transition(self.state, done)
        outcome = self.outcome(self.state)
        return self.describe(), outcome or 0.0, outcome is not None, False, self.info(action)

    def info(self, action=None):
        """What credit rules may read, after `action` or after a reset."""
        return {
            "state": self.state_key(),
            "success": self.outcome(self.state) == 1.0,
            "valid": action is None or action in self.actions,
            "actions": self.actions,
            "facts": frozenset(self.facts()),
        }

    def state_key(self):
        """The identity of the state that credit rules see (a task may hide some of it)."""
        return self.state

    def distance(self, state=None):
        """Fewest actions from `state` (default: the current one) to success, inf if there are none.

        The truth for luck that does not slip, by breadth-first search over `transition`.
        """
        state = self.state if state is None else state
        if state not in self._distances:
            self._distances.update(self._search(state))
        return self._distances[state]

    def best_actions(self):
        """The actions that bring success one step nearer."""
        here = self.distance()
        return [a for a in self.actions if self.distance(self.transition(self.state, a)) < here]

    def _search(self, start):
        """Distance of every state that can be reached from `start`: forwards to find, then back."""
        before, queue = {start: []}, deque([start])
        while queue:
            state = queue.popleft()
            if self.outcome(state) is None:
                for action in self.useful_actions(state):
                    after = self.transition(state, action)
                    if after not in before:
                        before[after] = []
                        queue.append(after)
                    before[after].append(state)
        distances = {state: 0 for state in before if self.outcome(state) == 1.0}
        queue = deque(distances)
        while queue:
            state = queue.popleft()
            for earlier in before[state]:
                if earlier not in distances:
                    distances[earlier] = distances[state] + 1
                    queue.append(earlier)
        return {state: distances.get(state, math.inf) for state in before}

    def useful_actions(self, state):
        """The actions that a shortest way may need: the search tries no others."""
        return self.actions
