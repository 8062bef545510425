"""Real tasks for gymnasium, played by our own engines: importing this registers them under `real/`.

Optional packages are imported only when an environment that needs them is made.
"""

import gymnasium

gymnasium.register("real/ALFWorld-v0", "real_envs.alfworld:ALFWorld", max_episode_steps=50)
gymnasium.register("real/WebShop-v0", "real_envs.webshop:WebShop", max_episode_steps=15)
