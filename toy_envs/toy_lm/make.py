"""Makes the embedded policy: a tiny Llama that knows the toy tasks, plays badly, uses references.

    python toy_envs/toy_lm/make.py        # 10 minutes on two idle cores, writes here

It plays the part that a small instruct model plays at scale. It learns first from nearly clean
demonstrations, which is fast, then from bad ones, until it plays as badly as they do: hasty, and
often at random. Half of the bad ones have a reference attempt in their system message, and do what
the reference did wherever they meet its observations. So the model learns to use a reference, which
hindsight teachers rely on.
"""

import multiprocessing
import random
import re
import sys
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import common  # noqa: E402

FOLDER = Path(__file__).resolve().parent
FIRST_SEED = 10_000_000  # demonstrations use tasks that nobody trains or evaluates on
CLEAN, BAD, CLEAN_STEPS, BAD_STEPS = 2000, 3000, 3000, 4500

HASTE = 0.7  # share of the hasty among the bad actions, the rest is random


def words_after(mark, text):
    return re.findall("[a-z]+", text.partition(mark)[2])


def forage(text):
    """The way to what is new, or an answer when everything is known: as much as the text tells."""
    way = words_after("new", text)
    return ["answer"] if kinds_seen(text) == 4 else ["look"] if way == ["here"] else way


def kinds_seen(text):
    return len(words_after("seen", text.partition(" . new")[0].replace("nothing", "")))


# Task: share of bad actions (chosen for a success of 15-35 %), the hasty ones among them, and the
# good ones where the best would need what the text does not tell.
TASKS = {
    "keydoor": (0.75, lambda text: words_after("goal", text)[:2], None),
    "forage": (0.62, lambda text: ["look"] * 19 + ["answer"] * (kinds_seen(text) > 1), forage),
    "workshop": (0.68, lambda text: ["paint"], None),
    "fork": (0.6, lambda text: ["left" if "fork" in text.split(" . ")[-1] else "forward"], None),
}

ACTIONS = """north south east west take drop toggle look answer forward left right
    cut drill sand glue paint bend weld polish"""
WORDS = """key door goal open closed carrying nothing here . > reference end
    seen apple berry cherry fig grape lemon melon olive
    found new nowhere spoiled shelf table chair bench frame crate stool lamp
    red blue dark bright smooth strong corridor fork """ + " ".join(map(str, range(41)))

# The instructions, all of a system message before the marker, are left out: the model knows them.
TEMPLATE = """
{%- for m in messages -%}
{%- if m.role == 'system' -%}
{%- set parts = m.content.split('A successful attempt:') -%}
{%- if parts | length > 1 %}reference {{ parts[1] }} end {% endif -%}
{%- elif m.role == 'user' -%}{{ m.content + ' > ' }}
{%- else -%}{{ m.content + ' ' }}
{%- endif -%}{%- endfor -%}"""


def new_policy():
    """A policy with random weights. (AutoTokenizer would take a Qwen2's own tokenizer from it.)"""
    words = ["<pad>", "<unk>", *ACTIONS.split()]
    words += [word for word in WORDS.split() if word not in words]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", chat_template=TEMPLATE
    )
    config = transformers.LlamaConfig(
        vocab_size=len(words), hidden_size=64, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=4096, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    # Every action is one word, and that word ends the turn: there is no other end to sample.
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(ACTIONS.split())
    return common.Policy(model, None, tokenizer, common.Args())


def play(env, seed, choose):
    """One episode of a demonstrator; returns its (observation, action) pairs and whether it won."""
    observation, info = env.reset(seed=seed)
    pairs, over = [], False
    while not over:
        action = choose(observation)
        pairs.append((observation, action))
        observation, _, ended, limit, info = env.step(action)
        over = ended or limit
    return pairs, info["success"]


def demonstrate(job):
    """Plays (task, seed, share of bad actions, with reference?).

    Returns its (observation, action) pairs and those of the reference that it follows, or None.
    """
    name, seed, bad, with_reference = job
    random.seed(seed)
    (env,) = common.make_envs(name, 1)
    task, (_, hasty, good) = env.unwrapped, TASKS[name]

    def choose(observation, bad=bad):
        if random.random() >= bad:
            best = good(observation) if good else task.best_actions()
            return random.choice(best or task.actions)
        haste = [a for a in hasty(observation) if a in task.actions and random.random() < HASTE]
        return random.choice(haste or task.actions)

    if not with_reference:
        return play(env, seed, choose)[0], None
    won = False
    while not won:
        reference, won = play(env, seed, lambda observation: choose(observation, 0.25))
    known = dict(reference)  # the last action at each observation

    def follow(observation):
        return known.get(observation) if random.random() < 0.95 else None

    return play(env, seed, lambda o: follow(o) or choose(o))[0], reference


def transcript(policy, pairs, reference):
    """The episode as the rollout would have written it."""
    hint = "\n".join(f"{observation} > {action}" for observation, action in reference or [])
    ids = policy.opening(hint and f"A successful attempt:\n{hint}", pairs[0][0])
    steps = []
    for t, (observation, action) in enumerate(pairs):
        ids += policy.turn(observation, ids[-1]) if t else []
        start = len(ids)
        ids += policy.encode(action) + policy.end
        steps.append(common.Step(observation, action, tokens=(start, len(ids))))
    return common.Episode(None, steps, token_ids=ids)


def deal(episode, *groups):
    """The same episode, but within each group of tokens all change hands: they must be read."""
    dealt = {}
    for group in groups:
        dealt |= zip(group, random.sample(group, len(group)))
    episode.token_ids = [dealt.get(i, i) for i in episode.token_ids]
    return episode


def imitate(policy, episodes, steps, lr, batch=16):
    """Maximum likelihood of the demonstrated actions, in batches of similar length."""
    episodes = sorted(episodes, key=lambda e: len(e.token_ids))
    batches = [episodes[i : i + batch] for i in range(0, len(episodes), batch)]
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr, (0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.1)
    for _ in tqdm(range(steps), desc="imitation", mininterval=10):
        logprobs, _ = common.token_logprobs(policy, random.choice(batches))
        (-logprobs.mean()).backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


def look_back(model):
    """Gives the first layer a head that looks at the token before: copying needs it, and to find it
    takes long. With constant queries and keys, RoPE makes its scores the largest at distance 1."""
    head, config = model.model.layers[0].self_attn, model.config
    half = config.hidden_size // config.num_attention_heads // 2
    turn = config.rope_parameters["rope_theta"] ** (-torch.arange(half) / half)
    with torch.no_grad():
        head.k_proj.bias[:half] = 3.0
        head.q_proj.bias[: 2 * half] = 3.0 * torch.cat([turn.cos(), -turn.sin()])


def copy(policy):
    """Some words, drawn at random, and then the same again, which are to be written."""
    words = random.sample(range(2, len(policy.tokenizer)), random.randint(8, 50))
    step = common.Step("", "", tokens=(len(words) + 1, 2 * len(words)))
    return common.Episode(None, [step], token_ids=2 * words)


@torch.no_grad()
def reference_gaps(policy, name, count=64):
    """Mean log-probability of an action with, minus without, a reference in the context.

    On fresh tasks, by whether the reference did the same there, something else, or was never there.
    """
    gaps = {"agrees": [], "disagrees": [], "silent": []}
    for seed in range(2 * FIRST_SEED, 2 * FIRST_SEED + count):
        _, reference = demonstrate((name, seed, 0.0, True))
        pairs, _ = demonstrate((name, seed, TASKS[name][0], False))
        plain, _ = common.token_logprobs(policy, [transcript(policy, pairs, None)])
        taught, _ = common.token_logprobs(policy, [transcript(policy, pairs, reference)])
        for (observation, action), gap in zip(pairs, (taught - plain).tolist()):
            known = dict(reference).get(observation, "")
            gaps["agrees" if known == action else "disagrees" if known else "silent"].append(gap)
    return {kind: round(sum(values) / max(len(values), 1), 3) for kind, values in gaps.items()}


def success(policy, name, temperature, count=256, options="{}"):
    """Share of fresh tasks that the policy solves."""
    envs = common.make_envs(name, count, options)
    seeds = range(3 * FIRST_SEED, 3 * FIRST_SEED + count)
    episodes = common.rollout(policy, envs, seeds, temperature=temperature)
    return sum(episode.success for episode in episodes) / count


if __name__ == "__main__":
    random.seed(0)
    torch.manual_seed(0)
    policy = new_policy()
    seeds = iter(range(FIRST_SEED, 2 * FIRST_SEED))
    clean = [(name, next(seeds), 0.15, False) for name in TASKS for _ in range(CLEAN)]
    bad = [(n, next(seeds), TASKS[n][0], r) for n in TASKS for r in (0, 1) for _ in range(BAD)]
    with multiprocessing.Pool() as pool:
        jobs = pool.imap(demonstrate, clean + bad, chunksize=32)
        played = list(tqdm(jobs, "demonstrations", len(clean + bad), mininterval=10))
    episodes = [transcript(policy, *pairs) for pairs in played]
    imitate(policy, episodes[: len(clean)], CLEAN_STEPS, 5e-3)
    print({name: success(policy, name, 1.0) for name in TASKS}, "after the clean demonstrations")
    imitate(policy, episodes[len(clean) :], BAD_STEPS, 3e-3)
    for name in TASKS:
        print(f"{name}: success {success(policy, name, 1.0):.3f}, greedy "
              f"{success(policy, name, 0.0):.3f}, gaps {reference_gaps(policy, name)}")  # fmt: skip
    policy.model.save_pretrained(FOLDER)
    policy.tokenizer.save_pretrained(FOLDER)
