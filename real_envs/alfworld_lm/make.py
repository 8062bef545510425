"""Makes the small policy for ALFWorld: a tiny Llama that knows the game's words, and plays badly.

    python real_envs/alfworld_lm/make.py GAMES     # a folder or a file of games; 45 minutes

It learns to copy, and then, as the toys' policy does (toy_envs/toy_lm/make.py), from demonstrations
on training games alone: fairly clean ones, then bad ones, half of them with a reference attempt. In
every other one the names of all things and places change hands: what to take must be read, not
guessed. The demonstrator goes by what it has read: a shortest way to success with the things that
it has seen, and until those are enough, a search where it has not been. A third of the searches go
where the thing really is: the policy, which cannot know, learns where such things usually are. Bad
actions are random, or idle: they look around again.

The tokenizer reads the game and not the list of admissible commands, no articles, no punctuation:
some 15 tokens a turn instead of 180.
"""

import argparse
import json
import math
import multiprocessing
import random
import re
import sys
from pathlib import Path

import torch
import transformers
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from tqdm import tqdm

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[1]))
import common  # noqa: E402
from toy_envs.toy_lm.make import (  # noqa: E402
    TEMPLATE,
    copy,
    deal,
    imitate,
    look_back,
    play,
    success,
    transcript,
)

CLEAN, BAD, CLEAN_STEPS, BAD_STEPS = 12_000, 2000, 4000, 1000
BAD_SHARE = 0.6  # of the actions, chosen for a success of 10-35 %
IDLE = 0.5  # share of the idle ones among them, the rest is random
GUESS = 0.3  # share of searches that go where the thing really is
UNREAD = [r"Your admissible actions of the current situation are: \[[^\]]*\]\.", r"[^\w\s<>]|\ba\b"]


def new_policy(words):
    """A policy with random weights that knows these words."""
    words = ["<pad>", "<unk>", "<end>", ">", "reference", "end", *words]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    replace = [normalizers.Replace(Regex(pattern), " ") for pattern in UNREAD]
    tokenizer.normalizer = normalizers.Sequence([*replace, normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="<end>",
        chat_template=TEMPLATE.replace("m.content + ' '", "m.content + '<end> '"),
    )  # fmt: skip
    config = transformers.LlamaConfig(
        vocab_size=len(words), hidden_size=128, intermediate_size=256, num_hidden_layers=3,
        num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=4096,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=2, pad_token_id=0,
        attention_bias=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    look_back(model)
    return common.Policy(model, None, tokenizer, common.Args())


def demonstrate(job):
    """Plays (options, seed, share of bad actions, with reference?); returns its (observation,
    action) pairs and those of the reference that it follows, or None."""
    options, seed, bad, with_reference = job
    rng = random.Random(seed)
    (env,) = common.make_envs("alfworld", 1, options)
    task = env.unwrapped

    def attempt(bad, known):
        done = set()

        def choose(observation):
            if observation in known and rng.random() < 0.95:
                action = known[observation]
            elif rng.random() >= bad:
                action = good(task, done, rng)
            else:
                idle = rng.random() < IDLE
                action = rng.choice(["look", "inventory"] if idle else task.actions)
            done.add(action)
            return action

        return play(env, seed, choose)

    reference, won = None, not with_reference
    while not won:
        reference, won = attempt(0.1, {})
    return attempt(bad, dict(reference or []))[0], reference


def good(task, done, rng):
    """A step on a shortest way with what has been seen, else of a search where nobody has been."""
    hidden = {*task.task.things, *task.task.lamps} - task.seen
    commands = rng.sample(task.actions, len(task.actions))

    def seen(state):
        lies = frozenset(fact for fact in state["inreceptacle"] if fact[0] not in hidden)
        return task.distance({**state, "inreceptacle": lies})

    def nearer(distance):
        here, after = distance(task.state), task.game.apply
        ways = (c for c in commands if distance(after(task.state, task.operations[c])) < here)
        return next(ways, commands[0])  # none from a dead end

    if math.isfinite(seen(task.state)):
        return nearer(seen)
    closed = [c for c in commands if c.startswith("open ") and c not in done]
    if not closed and rng.random() < GUESS:
        return nearer(task.distance)
    places = [c for c in commands if c.startswith("go to ") and c not in done]
    return (closed + places + commands)[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("games", help="a folder like ALFWORLD_DATA, or a file of games")
    games = str(Path(parser.parse_args().games).resolve())
    options = json.dumps({"games": games, "commands": False})
    jobs = [(options, seed, 0.25, False) for seed in range(CLEAN)]
    jobs += [(options, CLEAN + seed, BAD_SHARE, seed % 2 == 1) for seed in range(2 * BAD)]
    with multiprocessing.Pool() as pool:
        pairs = pool.imap(demonstrate, jobs, chunksize=25)
        played = list(tqdm(pairs, "demonstrations", len(jobs), mininterval=10))
    text = " ".join(f"{told} {action}" for pairs, _ in played for told, action in pairs)
    words = sorted({*re.findall(r"\w+", text.lower())} - {"a"})
    random.seed(0)
    torch.manual_seed(0)
    policy = new_policy(words + [n for n in map(str, range(41)) if n not in words])
    names = sorted({*policy.encode(" ".join({*re.findall(r"[a-z]+(?= \d)", text)}))})
    episodes = [transcript(policy, *pairs) for pairs in played]
    for episode in episodes:
        if random.random() < 0.5:
            deal(episode, names)
    imitate(policy, [copy(policy) for _ in range(4000)], 350, 3e-3, batch=32)
    imitate(policy, episodes[:CLEAN], CLEAN_STEPS, 3e-3)
    print("success after the clean demonstrations:", success(policy, "alfworld", 1.0, 128, options))
    imitate(policy, episodes[CLEAN:], BAD_STEPS, 2e-3)
    held_out = [success(policy, "alfworld", heat, 128, options) for heat in (1.0, 0.0)]
    print("success on held-out games, greedy:", *held_out)
    policy.model.half().save_pretrained(FOLDER)
    policy.tokenizer.save_pretrained(FOLDER)
