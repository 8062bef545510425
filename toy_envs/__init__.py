"""Text worlds for gymnasium: importing this package registers them under `toy/`."""

import gymnasium

gymnasium.register("toy/KeyDoor-v0", "toy_envs.keydoor:KeyDoor", max_episode_steps=40)
gymnasium.register("toy/Forage-v0", "toy_envs.forage:Forage", max_episode_steps=40)
gymnasium.register("toy/Workshop-v0", "toy_envs.workshop:Workshop", max_episode_steps=14)
gymnasium.register("toy/Fork-v0", "toy_envs.fork:Fork", max_episode_steps=40)
