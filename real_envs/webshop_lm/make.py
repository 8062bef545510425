"""Makes WebShop's embedded policy: a tiny Llama that knows the shop, and buys hastily.

    python real_envs/webshop_lm/make.py        # 4 minutes on one idle core, writes here

It learns as the toys' policy does (toy_envs/toy_lm/make.py): from nearly clean demonstrations, then
from bad ones, half of them with a reference attempt; and before that, to copy. Only training tasks
are demonstrated. Product numbers change hands in every demonstration, and in half of them all words
of the catalogue do: they must be read from the page, so that held-out products are like any others.
"""

import random
import re
import sys
from pathlib import Path

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import common  # noqa: E402
from real_envs.webshop import EMBEDDED  # noqa: E402
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

COPIES, CLEAN, BAD = 4000, 3000, 1500
COPY_STEPS, CLEAN_STEPS, BAD_STEPS = 350, 800, 800
BAD_SHARE = 0.4  # of the actions, chosen for a success of 10-35 %
HASTE = 0.8  # share of the hasty among them, the rest is random

# What is a word. Quotes, commas and the like are not, and so are not read.
WORD = r"(?:search|click)\[|\]|< prev|next >|>|[a-z0-9]+"
# All that can be clicked is on the page, so that the list of it is left out, like separators.
UNREAD = r" \[SEP\] |Admissible actions:(\n'.*',)*"
PAGES = ["<pad>", "<unk>", "< prev", "next >", *map(str, range(150))]
PAGES += """reference end > search[ click[ ] instruction find me with and price lower
    than dollars to search back total results page rating n a description features reviews buy now
    color size pack plug scent shape model style flavor inch 00""".split()  # noqa: SIM905


def new_policy():
    """A policy with random weights. Its words are those of the catalogue and of the pages."""
    catalogue = "".join(path.read_text() for path in sorted(EMBEDDED.glob("*s.json")))
    words = dict.fromkeys([*PAGES, *re.findall(WORD, catalogue.lower())])
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    change = [normalizers.Replace(Regex(UNREAD), " "), normalizers.Lowercase()]
    tokenizer.normalizer = normalizers.Sequence(change)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), "removed", invert=True)
    # Blanks between the words, but none inside of the brackets: `click[buy now]`.
    tight = [decoders.Replace("[ ", "["), decoders.Replace(" ]", "]")]
    apart = decoders.WordPiece("##", cleanup=False)
    tokenizer.decoder = decoders.Sequence([apart, decoders.Fuse(), *tight])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", chat_template=TEMPLATE
    )  # fmt: skip
    config = transformers.LlamaConfig(
        vocab_size=len(words), hidden_size=64, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=8192, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=None, pad_token_id=0, attention_bias=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    look_back(model)
    # The bracket that closes an action ends the turn: there is no other end to sample.
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids("]")
    return common.Policy(model, None, tokenizer, common.Args(env="webshop"))


def advise(session):
    """What the task asks for now, and what somebody hasty does instead."""
    goal, page = session.goal, session.page
    if page == "search":
        words = re.sub(r"find me |,| with \w+:.*", "", goal.instruction_text.lower()).split()
        return [f"search[{' '.join(words[:n])}]" for n in (None, random.randint(1, 3))]
    if page == "search_results":
        number, texts = goal.asin.lower(), session.clickables
        first = next((t for t, kind in texts.items() if kind == "product"), "back to search")
        return f"click[{number if number in texts else 'back to search'}]", f"click[{first}]"
    if page == "item_sub_page" or session.asin != goal.asin:
        return "click[< prev]", f"click[{'< prev' if session.sub else 'buy now'}]"
    missing = [v for name, v in goal.goal_options.items() if session.options.get(name) != v]
    return f"click[{[*missing, 'buy now'][0]}]", "click[buy now]"


def demonstrate(env, seed, bad, with_reference):
    """Plays the task of `seed`, with this share of bad actions; returns its (observation, action)
    pairs and those of the reference that it follows, or None."""
    shop, known = env.unwrapped, {}  # known: state -> what the reference did there

    def choose(observation, bad=bad):
        best, hasty = advise(shop.session)
        if random.random() >= bad:
            return best
        haste = shop.session.page == "search" or random.random() < HASTE
        return hasty if haste else random.choice(shop.actions())

    def record(observation):
        return known.setdefault(shop.session.state(), choose(observation, 0.1))

    def follow(observation):
        return random.random() < 0.95 and known.get(shop.session.state()) or choose(observation)

    reference, won = None, not with_reference
    while not won:
        known.clear()
        reference, won = play(env, seed, record)
    return play(env, seed, follow)[0], reference


if __name__ == "__main__":
    random.seed(0)
    torch.manual_seed(0)
    policy, (env,) = new_policy(), common.make_envs("webshop", 1)
    words = dict(sorted(policy.tokenizer.get_vocab().items()))  # its own order is never the same
    numbers = [i for word, i in words.items() if re.fullmatch("b0[a-z2-9]{8}", word)]
    others = [i for word, i in words.items() if i not in numbers and word not in PAGES]
    tasks = range(len(env.unwrapped.pools[0]))  # each seed below is a task to train on

    def demonstrations(count, *jobs):
        played = (demonstrate(env, random.choice(tasks), *job) for job in jobs * count)
        episodes = (transcript(policy, *pairs) for pairs in played)
        return [deal(e, *[numbers, others][: random.randint(1, 2)]) for e in episodes]

    imitate(policy, [copy(policy) for _ in range(COPIES)], COPY_STEPS, 3e-3, batch=32)
    imitate(policy, demonstrations(CLEAN, (0.1, False)), CLEAN_STEPS, 4e-3)
    print("success after the clean demonstrations:", success(policy, "webshop", 1.0))
    jobs = (BAD_SHARE, False), (BAD_SHARE, True)
    imitate(policy, demonstrations(BAD, *jobs), BAD_STEPS, 2e-3)
    print("success, greedy:", *(success(policy, "webshop", heat) for heat in (1.0, 0.0)))
    for part in (policy.model.half(), policy.tokenizer):
        part.save_pretrained(Path(__file__).resolve().parent)
