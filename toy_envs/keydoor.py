"""KeyDoor: fetch the key, open the door in the wall, reach the goal behind it.

. . . # . . .      A wall with one door cuts the room. The key lies on the agent's side, the
. K . # . . G      goal on the other. Reward 1 at the goal, else 0; 40 turns. The three
. . . D . . .      subgoals depend on each other in order, and two of them can be undone:
A . . # . . .      the key can be dropped and the door closed again.
"""

from toy_envs.gridworld import DIRECTIONS, GridWorld, bearing, chain


class KeyDoor(GridWorld):
    """State: (agent's cell, key's cell or None when carried, door open?). Cells are (x, y).

    Args:
        size: cells along each side of the room (at least 3).
        slip: probability that a move goes in a random direction instead.
        alias: hide the inventory, from the text and from the state key. The text then always
            tells where the key lay at first, so that states with and without it look the same.
    """

    actions = (*DIRECTIONS, "take", "drop", "toggle")
    instructions = (
        "You are in a room that a wall with a door divides. Take the key, toggle the door beside "
        "you with it, and walk to the goal. Each turn, answer with one of these actions and "
        "nothing else: " + ", ".join(actions) + "."
    )
    prerequisites = chain("holding the key", "the door is open", "the goal is reached")

    def __init__(self, size=7, slip=0.0, alias=False):
        super().__init__(slip)
        if size < 3:
            raise ValueError(f"KeyDoor needs a size of at least 3, not {size}")
        self.size, self.alias = size, alias

    def layout(self):
        wall = self.size // 2
        draw = self.np_random.integers
        self.door = wall, int(draw(self.size))
        self.goal = int(draw(wall + 1, self.size)), int(draw(self.size))
        key, start = (divmod(int(i), self.size) for i in
                      self.np_random.choice(wall * self.size, 2, replace=False))  # fmt: skip
        self.first_key = key
        return start, key, False

    def transition(self, state, action):
        agent, key, is_open = state
        if action in DIRECTIONS:
            x, y = (a + d for a, d in zip(agent, DIRECTIONS[action]))
            inside = 0 <= x < self.size and 0 <= y < self.size
            free = x != self.door[0] or (is_open and (x, y) == self.door)
            return ((x, y) if inside and free else agent), key, is_open
        if action == "take" and key == agent:
            return agent, None, is_open
        if action == "drop" and key is None:
            return agent, agent, is_open
        beside_door = abs(agent[0] - self.door[0]) == 1 and agent[1] == self.door[1]
        if action == "toggle" and key is None and beside_door:
            return agent, key, not is_open
        return state

    def useful_actions(self, state):
        return [action for action in self.actions if action != "drop"]

    def outcome(self, state):
        return 1.0 if state[0] == self.goal else None

    def state_key(self):
        agent, _, is_open = self.state
        return (agent, is_open) if self.alias else self.state

    def facts(self):
        agent, key, is_open = self.state
        held = (key is None, is_open, agent == self.goal)
        return [fact for fact, holds in zip(self.prerequisites, held) if holds]

    def describe(self):
        agent, key, is_open = self.state
        if self.alias:
            key = self.first_key
        parts = [f"key {bearing(agent, key)}"] if key else []
        parts += [f"door {'open' if is_open else 'closed'} {bearing(agent, self.door)}"]
        parts += [f"goal {bearing(agent, self.goal)}"]
        parts += [] if self.alias else [f"carrying {'nothing' if key else 'key'}"]
        return " . ".join(parts)
