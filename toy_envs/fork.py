"""Fork: a corridor in which only a few turns are decisions, and a wrong one is never noticed.

0 1 2 < 4 5 6 7 < 9 . . . G      At a fork (<) one door, left or right, leads on to the reward. The
                                 corridor behind the other looks the same, and ends without one.
Which door is right is told once, in the first observation. At all other cells only `forward` does
anything. So the true credit is known: steps that leave a fork have all of it.
"""

from toy_envs.gridworld import GridWorld, chain


class Fork(GridWorld):
    """State: (cell, still on the right way?).

    Args:
        length: cells of the corridor (at least 1).
        density: the share of them that are forks, in 0..1; which ones is drawn with the task.
    """

    actions = ("forward", "left", "right")
    instructions = (
        "You walk along a corridor. At each fork only one of the doors leads on to the reward; the "
        "first message tells which. Elsewhere the only way is forward. Each turn, answer with one "
        "of these actions and nothing else: " + ", ".join(actions) + "."
    )

    def __init__(self, length=16, density=0.25):
        super().__init__()
        if length < 1 or not 0 <= density <= 1:
            raise ValueError(f"Fork has no length {length} with a density of {density}")
        self.length, self.count = length, round(length * density)
        passed = [f"fork {i + 1} is passed" for i in range(self.count)]
        self.prerequisites = chain(*passed, "the reward is reached")

    def layout(self):
        cells = sorted(self.np_random.choice(self.length, self.count, replace=False).tolist())
        self.doors = {cell: self.actions[self.np_random.integers(1, 3)] for cell in cells}
        self.names = {cell: f"fork {i + 1}" for i, cell in enumerate(cells)}
        return 0, True

    def transition(self, state, action):
        cell, right = state
        if cell not in self.doors:
            return (cell + 1, right) if action == "forward" else state
        return state if action == "forward" else (cell + 1, right and action == self.doors[cell])

    def best_actions(self):
        """What leads on here. The same on the wrong way, where it is of no use any more."""
        return [self.doors.get(self.state[0], "forward")]

    def outcome(self, state):
        cell, right = state
        return float(right) if cell == self.length else None

    def facts(self):
        cell, right = self.state
        passed = sum(fork < cell for fork in self.doors) + (cell == self.length)
        return list(self.prerequisites)[:passed] if right else []

    def describe(self):
        cell, _ = self.state
        told = [f"{self.names[fork]} {door}" for fork, door in self.doors.items() if not cell]
        return " . ".join([*told, self.names.get(cell, "corridor")])
