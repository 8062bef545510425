"""Text grid worlds for gymnasium: importing this package registers them under `toy/`."""

import gymnasium

gymnasium.register("toy/KeyDoor-v0", "toy_envs.keydoor:KeyDoor", max_episode_steps=40)
