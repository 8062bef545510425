"""WebShop: recorded sessions, rewards, goals and prices of the original; bad input; properties."""

import dataclasses
import hashlib
import json
import lzma
import random
import re
import subprocess
import sys

import gymnasium
import pytest
from conftest import HOUSE
from gymnasium.utils.env_checker import check_env

import common
import real_envs  # noqa: F401  (registers the environments)
from real_envs import webshop
from real_envs.webshop_engine import (
    COLOURS,
    Goal,
    LuceneSearch,
    Search,
    attainable,
    make_goals,
    read_products,
    score_purchase,
    token_set_score,
    wishes,
)
from real_envs.webshop_pages import URL_WORDS, Session, Shop, parse_action, visible

RECORDED = next(
    (p for up in (HOUSE, HOUSE.parent) if (p := up / "shared/data/webshop").exists()), None
)
recorded = pytest.mark.skipif(RECORDED is None, reason="no ../shared/data/webshop")


def load(name):
    opener = lzma.open if name.endswith(".xz") else open
    with opener(RECORDED / name, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file] if "jsonl" in name else json.load(file)


@pytest.fixture(scope="module")
def check():
    return load("check.json")


@pytest.fixture(scope="module")
def original(check):
    """The shop of the recordings, with the recorded nouns of the titles."""
    products = read_products(load("items.json.xz"), load("attributes.json.xz"))
    nouns = {p.title: check["title_nouns"][p.asin] for p in products}
    return Shop(products, make_goals(products), Search(products), nouns.__getitem__)


def plain(goal):
    """A goal as JSON gives it back."""
    return json.loads(json.dumps(dataclasses.asdict(goal)))


def digest(goals):
    fields = "asin", "instruction_text", "price_upper", "goal_options", "attributes"
    rows = [[plain(goal)[field] for field in fields] for goal in goals]
    return hashlib.sha256(
        json.dumps(rows, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


@recorded
def test_products_prices_and_goals(original, check):
    goals = original.goals
    assert {p.asin: p.price for p in original.products} == check["product_prices"]
    assert {p.asin: p.tag for p in original.products} == check["price_tags"]
    assert (len(original.products), len(goals)) == (check["n_products"], check["n_goals"])
    assert digest(goals) == check["sha256_all"]
    assert digest(goals[:500]) == check["sha256_first_500"]
    assert digest(goals[500:]) == check["sha256_after_500"]
    assert {k: plain(goals[int(k)]) for k in check["goals"]} == check["goals"]
    assert sum(goal.weight for goal in goals) == pytest.approx(check["sum_weights"], abs=1e-9)
    assert check["colour_terms"] == COLOURS
    assert sum(not attainable(goal) for goal in goals) == 444
    assert sum(not attainable(goal) for goal in goals[:500]) == 32


@recorded
def test_every_recorded_reward(original):
    rows = load("rewards.jsonl")
    for row in rows:
        product, goal = original.by_asin[row["product"]], Goal(**row["goal"])
        reward, parts, facts = score_purchase(
            product, goal, row["options"], original.nouns, row["price"]
        )
        assert reward == row["reward"] and parts == row["parts"], row["id"]
        assert (reward == 1.0) == (facts == set(wishes(goal)))
    assert len(rows) == 60


@recorded
def test_every_step_of_every_recorded_session(original):
    """Text, buttons, reward, end and hidden state. Where the original's order of equal scores is
    the luck of its sort (marked in the record), its list is put in the place of ours."""
    place = {p.asin: i for i, p in enumerate(original.products)}
    sessions, steps, searches, replayed = load("traces.jsonl.xz"), 0, 0, 0
    for trace in sessions:
        goal = original.goals[trace["goal_index"]]
        assert plain(goal) == trace["goal"]
        session = Session(original, goal, trace["show_attrs"])
        start = trace["reset"] | {"action": None, "reward": 0.0, "done": False}
        for step in [start, *trace["steps"]]:
            where = trace["id"], step["action"]
            if step["action"] is not None:
                session.act(step["action"])
                steps += 1
            if result := step.get("search"):
                searches, asins = searches + 1, [p.asin for p in session.found]
                assert (session.keywords, len(asins)) == (result["keywords"], result["total"])
                scores = original.search.scores(" ".join(session.keywords))
                for asin, score in zip(result["asins"], result["scores"] or ()):
                    assert scores[place[asin]] == pytest.approx(score, abs=1e-8), where
                same = result["ties"] is None or result["ties"]["stable_order_equal"]
                assert (asins == result["asins"]) == same, where
                last = result["asins"]
            if step.get("page_order_ambiguous"):
                session.found = [original.by_asin[asin] for asin in last]
                session.show(session.page)
                replayed += 1
            assert session.text() == step["observation"], where
            assert list(session.clickables) == step["available_actions"]["clickables"], where
            assert ("search" in session.clickables) == step["available_actions"]["has_search_bar"]
            assert (session.reward, session.page == "done") == (step["reward"], step["done"])
            if "state" in step:
                here = {"asin": session.asin, "page": session.number, "options": session.options}
                assert here == step["state"], where
            if bought := step.get("purchase"):
                assert session.parts == bought["parts"] and session.reward == bought["reward"]
                assert original.by_asin[session.asin].price == bought["price"]
                assert session.goal.price_upper == bought["price_upper"]
    print(f"{len(sessions)} sessions, {steps} steps, {searches} searches, {replayed} replayed")
    assert (len(sessions), steps, searches) == (40, 465, 103) and replayed < 0.2 * searches


@recorded
def test_the_original_files_in_a_folder(original, capsys, monkeypatch):
    """Without spaCy the nouns are guessed, and the log says so."""
    monkeypatch.setattr(webshop.importlib.util, "find_spec", lambda name: None)
    webshop.load_shop.cache_clear()
    env = gymnasium.make("real/WebShop-v0", data=str(RECORDED), published_split=True, split="test")
    assert "REWARDS MAY DIFFER" in capsys.readouterr().err
    text, _ = env.reset(seed=3)
    assert original.goals[3].instruction_text in text
    assert env.unwrapped.goal(499) == original.goals[499]


@recorded
def test_nouns_are_spacys(check, original):
    pytest.importorskip("spacy")
    nouns, source = webshop.noun_tagger({})
    if source not in webshop.TAGGERS:
        pytest.skip("no English model")
    for product in original.products:
        assert nouns(product.title) == check["title_nouns"][product.asin]


@recorded
def test_lucene_search(original):
    pytest.importorskip("bm25s")
    pytest.importorskip("Stemmer")
    search = LuceneSearch(original.products)
    mattresses = search("mattress")
    assert 0 < len(mattresses) < 50  # hits only
    assert all("mattress" in (p.title + p.description + str(p.bullets)).lower() for p in mattresses)
    assert search("mattresses") == mattresses and search("the") == search("zzz") == []
    # As Lucene's tokenizer and stemmer: numbers are one word, sizes have no stem.
    assert search.words("XS's 40.00, 12,000 cotton.Wash a1.b5") == (
        ["xs", "40.00", "12,000", "cotton.wash", "a1", "b5"]
    )


def test_search_by_the_definition():
    """Okapi BM25 written out for three documents: 2 words of title count twice."""
    base = {"full_description": "", "small_description": [], "pricing": "$1", "category": "c",
            "query": "q", "product_category": "d"}  # fmt: skip
    names = ["red hat", "blue hat", "green shoe", "old shoe", "new sock"]
    products = read_products([{**base, "asin": n[:4].upper(), "name": n} for n in names], {})
    from math import log

    rare, twice = log(4.5 / 1.5), log(3.5 / 2.5)  # idf of a word in 1 and in 2 of 5 documents
    tf = 2 * 2.2 / (2 + 1.2)  # each word is there twice; all documents are of average length
    scores = Search(products).scores("red red hat")
    assert scores == pytest.approx([2 * rare * tf + twice * tf, twice * tf, 0, 0, 0])
    assert [p.title for p in Search(products)("shoe")] == [names[i] for i in (2, 3, 0, 1, 4)]


def test_scores_of_words_against_thefuzz():
    fuzz = pytest.importorskip("rapidfuzz.fuzz")
    rng = random.Random(0)
    words = ["machine", "wash", "washable", "x", "large", "xx", "9", "wide", "light", "blue"]
    for _ in range(2000):
        a, b = (" ".join(rng.choices(words, k=rng.randint(1, 4))) for _ in range(2))
        assert token_set_score(a, b) == round(fuzz.token_set_ratio(a, b)), (a, b)


WORKED = [
    ("machine washable", "machine wash", 86), ("high quality", "highest quality", 89),
    ("easy use", "easy clean", 67), ("x-large", ("size", "xx-large"), 83),
    ("9 wide", ("size", "9"), 67), ("13 wide", ("size", "13"), 71), ("tan", ("shape", "round"), 0),
    ("x-large", ("size", "large"), 83), ("", "red", 0), ("wine", ("color", "a3-wine\xa0red"), 100),
]  # fmt: skip


@pytest.mark.parametrize("a, b, score", WORKED)
def test_scores_of_words(a, b, score):
    assert token_set_score(a, b) == token_set_score(b, a)
    assert token_set_score(a, b) == score or (score == 0 and token_set_score(a, b) < 60)


def world(**options):
    return gymnasium.make("real/WebShop-v0", **options).unwrapped


def right_way(env):
    """The actions that buy exactly what is asked for, after a search for the instruction."""
    goal = env.session.goal
    choices = [f"click[{value}]" for value in goal.goal_options.values()]
    search = f"search[{goal.instruction_text}]"
    return [search, f"click[{goal.asin}]", *choices, "click[features]", "click[< prev]"]


@pytest.mark.parametrize("options", [{}, {"prompt": "original"}])
def test_check_env(options):
    check_env(world(**options), skip_render_check=True)


def test_every_embedded_goal_can_be_reached():
    """The right way earns exactly 1, whatever the seed; facts come true one by one."""
    env = world()
    for seed in (*range(0, 600, 7), *range(webshop.HELD_OUT, webshop.HELD_OUT + 60)):
        _, info = env.reset(seed=seed)
        assert info["facts"] == set() and not info["success"]
        for action in right_way(env):
            _, reward, ended, _, info = env.step(action)
            assert info["valid"] and not ended and reward == 0 and info["task_score"] == 0
        assert info["facts"] == set(env.prerequisites)
        _, reward, ended, limit, info = env.step("click[Buy Now]")
        assert (reward, ended, limit, info["success"]) == (1.0, True, False, True)
        assert info["task_score"] == 1.0 and info["facts"] == set(env.prerequisites)


def test_the_catalogue_is_what_its_script_makes():
    from real_envs.webshop_data import make_catalogue as make

    names = "items", "attributes", "nouns"
    items, attributes, nouns = (
        json.loads((webshop.EMBEDDED / f"{n}.json").read_text(encoding="utf-8")) for n in names
    )
    assert (items, attributes) == make.catalogue()
    assert [*nouns] == [item["asin"] for item in items] and len(items) == 60


def test_facts_start_anew_with_another_product():
    env = world()
    env.reset(seed=0)
    *_, info = env.step(right_way(env)[0])
    assert info["scope"] is None and info["facts"] == set()
    for action in right_way(env)[1:]:
        *_, info = env.step(action)
    goal = env.session.goal
    assert info["scope"] == goal.asin and len(info["facts"]) == 3 + len(goal.goal_options)
    *_, info = env.step("click[< prev]")
    assert info["scope"] is None and info["facts"] == set()
    *_, info = env.step(f"click[{goal.asin}]")  # the options are lost
    assert info["facts"] == {"type", "attrs", "price"}
    other = next(p for p in env.shop.products if p.query != goal.query)
    env.step(f"search[{other.title}]")
    *_, info = env.step(f"click[{other.asin}]")
    assert info["scope"] == other.asin and "type" not in info["facts"]
    assert env.prerequisites["price"] == ("type",) and env.prerequisites["type"] == ()


def test_rewards_of_a_purchase_that_is_not_right():
    plays = []
    for options in ({}, {"win_reward": 10.0}, {"graded": True, "win_reward": 10.0}):
        env = world(**options)
        env.reset(seed=0)
        for action in right_way(env)[:2]:
            env.step(action)
        _, reward, ended, _, info = env.step("click[buy now]")
        assert ended and not info["success"] and 0 < info["task_score"] < 1
        plays.append((reward, info["task_score"]))
    score = plays[0][1]
    assert plays == [(0.0, score), (0.0, score), (10 * score, score)]
    env.reset(seed=0)
    rewards = [env.step(action)[1] for action in [*right_way(env), "click[buy now]"]]
    assert rewards[-1] == 10.0 and sum(rewards) == 10.0


def test_state_and_text():
    """The text of a product's page hides what is chosen; the key does not."""
    env = world()
    env.reset(seed=0)
    seen = [env.step(action) for action in right_way(env)[:-2]]
    pages, keys = [s[0] for s in seen[1:]], [s[4]["state"] for s in seen[1:]]
    assert len(set(pages)) == 1 and len(set(keys)) == len(keys) == 3
    assert "Instruction:" not in pages[0] and "Instruction:" in env.reset(seed=0)[0]
    assert pages[0].splitlines()[1] == "Admissible actions:" and "'click[buy now]'," in pages[0]
    original = world(prompt="original")
    text, _ = original.reset(seed=0)
    task = original.session.goal.instruction_text
    assert text == f"WebShop [SEP] Instruction: [SEP] {task} [SEP] Search"


def test_splits_share_no_product():
    env = world()
    train, test = ({goal.asin for goal in pool} for pool in env.pools)
    assert train and test and not train & test
    assert [env.goal(webshop.HELD_OUT + s) for s in range(50)] == [
        world(split="test").goal(s) for s in range(50)
    ]
    assert env.goal(3) == env.goal(3 + len(env.pools[0])) == world(split="train").goal(3)
    published = world(published_split=True)
    assert published.pools == [published.shop.goals[500:], published.shop.goals[:500]]
    leaked = [{goal.asin for goal in pool} for pool in published.pools]
    assert leaked[0] & leaked[1]  # the fault of the published one


def test_same_seed_same_task_and_environments_share_nothing():
    first, second = world(), world()
    assert first.reset(seed=5) == first.reset(seed=5) == second.reset(seed=5)
    before = second.describe()
    for action in [*right_way(first), "click[buy now]"]:
        *_, info = first.step(action)
    assert info["success"] and second.describe() == before and not second.info(True)["success"]
    assert first.shop is second.shop
    assert len({first.reset(seed=s)[0] for s in range(100)}) > 80


@pytest.mark.parametrize("action", [
    "", "dance", "search", "search[]", "click[]", "click[ buy now ]", "Click[description]", "[x]",
    " click[description]", "click[search]", "click[no such]", "search[<a> soft]", "search[<c>]",
    "click[x][y]", "search[a\nb]", "\x00\x1b[31m", "]" * 5000 + "[" * 5000, "a" * 10_000, None, 7,
    "click[" + "x" * 10_000 + "]", "\nclick[description]", "[[[]]]", "click(description)",
])  # fmt: skip
def test_no_effect(action):
    env = world()
    env.reset(seed=0)
    for before in right_way(env)[:3]:
        env.step(before)
    text, key = env.describe(), env.session.state()
    after, reward, ended, limit, info = env.step(action)
    assert (after, reward, ended, limit) == (text, 0.0, False, False)
    assert not info["valid"] and info["state"] == key


@pytest.mark.parametrize("action, page", [
    ("search[" + "shoe " * 2000 + "]", "search_results"), ("search[ ]", "search_results"),
    ("search[!!!]", "search_results"), ("search[<r> x]", "search_results"),
    ("search[\x07\t\x00 shoe]", "search_results"), ("search[<q> teas]", "search_results"),
    ("click[DESCRIPTION] please", "item_sub_page"), ("click[reviews]\nand so on", "item_sub_page"),
    ("search[<c> grocery and more]", "search_results"), ("click[back to search]", "search"),
])  # fmt: skip
def test_odd_and_understood(action, page):
    env = world()
    env.reset(seed=0)
    for before in right_way(env)[:3]:
        env.step(before)
    *_, info = env.step(action)
    assert info["valid"] and env.session.page == page


def test_nothing_happens_after_the_end():
    env = world()
    env.reset(seed=0)
    for action in [*right_way(env), "click[buy now]"]:
        text, *_ = env.step(action)
    for action in ("click[buy now]", "search[shoe]", "click[search]", "nonsense"):
        again, reward, ended, _, info = env.step(action)
        assert (again, reward, ended) == (text, 0.0, True)
        assert not info["valid"] and info["success"]


def test_the_words_in_the_url_mislead_the_way_back():
    env = world()
    env.reset(seed=0)
    goal = env.session.goal
    title = env.shop.by_asin[goal.asin].title
    env.step(f"search[search_results {title}]")
    env.step(f"click[{goal.asin}]")
    env.step("click[< prev]")
    assert (env.session.page, env.session.number) == ("search_results", 0)
    assert list(env.session.clickables) == ["back to search", "next >"]
    env.step(f"search[item_page {title}]")
    env.step(f"click[{goal.asin}]")
    env.step("click[features]")
    env.step("click[< prev]")
    assert (env.session.page, env.session.asin) == ("search_results", None)


def test_pages_beyond_the_results_are_empty():
    env = world()
    env.reset(seed=0)
    env.step("search[shoes]")
    seen = [p.asin for p in env.session.on_this_page()]
    for _ in range(4):
        env.step("click[next >]")
        seen += [p.asin for p in env.session.on_this_page()]
    assert len(seen) == len(set(seen)) == 50
    text, *_, info = env.step("click[next >]")
    assert "Page 6 (Total results: 50)" in text and info["valid"]
    assert info["actions"] == ("click[back to search]", "click[< prev]", "click[next >]")


def test_pieces_of_a_page():
    assert visible(["", " ", "\n", " \n ", "\xa0", " a ", "b\xa0"]) == ["", "", "a", "b"]


def small_folder(path, **changes):
    """A folder with three of the embedded products, and files replaced by `changes`."""
    files = {n: (webshop.EMBEDDED / f"{n}.json").read_text() for n in ("items", "attributes")}
    items, attributes = (json.loads(text) for text in files.values())
    items = [item for item in items if "instruction" in attributes[item["asin"]]][:3]
    for name, text in {
        "items": json.dumps(items),
        "attributes": files["attributes"],
        **changes,
    }.items():
        (path / f"{name}.json").write_text(text)
    return items, attributes


BROKEN = [
    ({"items": '[{"asin": "B0'}, "items.json is broken or truncated"),
    ({"items": "{}"}, "items.json is broken or truncated: it holds no list"),
    ({"items": '[{"asin": "B01"}]'}, "product record 0 cannot be read"),
    ({"items": "[7]"}, "product record 0 cannot be read"),
    ({"items": "[]"}, "no products|no goals"),
    ({"attributes": "[]"}, "attributes.json is broken or truncated: it holds no dict"),
    ({"attributes": "{}"}, "no goals"),
    ({"nouns": "\x00"}, "nouns.json is broken or truncated"),
    ({"items_human_ins": '{"B0": 1}'}, "no goals"),
    ({"items_human_ins": "{}"}, "no goals"),
    ({"items": "[" * 200_000}, "items.json is broken or truncated"),
]


@pytest.mark.parametrize("changes, message", BROKEN)
def test_broken_files(changes, message, tmp_path):
    small_folder(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        world(data=str(tmp_path), human_goals="items_human_ins" in changes)


@pytest.mark.parametrize("field, value", [
    ("pricing", "free"), ("small_description", None), ("customization_options", [1]),
    ("customization_options", {"Size": [{}]}), ("query", None), ("name", None),
    ("asin", "b0lower"), ("small_description", {"a": "b"}),
])  # fmt: skip
def test_broken_records(field, value, tmp_path):
    items, attributes = small_folder(tmp_path)
    items[1][field] = value
    with pytest.raises(ValueError, match="product record 1 cannot be read"):
        read_products(items, attributes)


@pytest.mark.parametrize("broken", ["soft", {"soft": 1}, [7]])
def test_no_text_is_read_as_its_letters(broken, tmp_path):
    items, attributes = small_folder(tmp_path)
    asin = items[0]["asin"]
    for field in ("attributes", "instruction_attributes"):
        with pytest.raises(ValueError, match="is no list of texts"):
            read_products(items, attributes | {asin: attributes[asin] | {field: broken}})
    wish = {"instruction": "i want it", "instruction_attributes": ["soft"],
            "instruction_options": broken}  # fmt: skip
    (tmp_path / "items_human_ins.json").write_text(json.dumps({asin: [wish]}))
    with pytest.raises(ValueError, match="an instruction in .* is no list of texts"):
        world(data=str(tmp_path), human_goals=True)
    (tmp_path / "nouns.json").write_text(json.dumps({asin: broken}))
    with pytest.raises(ValueError, match="the nouns in .* is no list of texts"):
        world(data=str(tmp_path))


def test_truncated_archive(tmp_path):
    items, _ = small_folder(tmp_path)
    (tmp_path / "items.json").unlink()
    (tmp_path / "items.json.xz").write_bytes(lzma.compress(json.dumps(items).encode())[:-9])
    with pytest.raises(ValueError, match="items.json.xz is broken or truncated"):
        world(data=str(tmp_path))


def test_records_that_are_skipped_and_cut(tmp_path):
    items, attributes = small_folder(tmp_path)
    extra = [{"asin": "nan"}, {"asin": "B" * 11}, items[0] | {"name": "second"}]
    extra += [
        items[0]
        | {
            "asin": "LK_B012345678",
            "pricing": "from $3 - $2 - $9",
            "name": "third",
            "customization_options": {"Size": None, "Fit": [{"value": " 11/12 A"}]},
        }
    ]
    products = read_products([*items, *extra], attributes)
    assert [p.title for p in products] == [*(i["name"] for i in items), "third"]
    assert products[-1].tag == "$3.0 to $2.0" and 2 <= products[-1].price <= 3
    assert products[-1].options == {"fit": ("11 | 12 a",)}
    assert products[-1].attributes == ("DUMMY_ATTR",) and products[-1].instruction is None


def test_human_goals(tmp_path):
    items, _ = small_folder(tmp_path)
    asin, value = (
        items[0]["asin"],
        next(iter(items[0]["customization_options"].values()))[0]["value"],
    )
    wish = {"instruction": "i want it..", "instruction_attributes": ["soft"],
            "instruction_options": [value]}  # fmt: skip
    unclear = wish | {"instruction_attributes": []}
    small_folder(tmp_path, items_human_ins=json.dumps({asin: [wish, unclear], "B0": [wish]}))
    shop = webshop.load_shop(str(tmp_path), "memory", True)
    (goal,) = shop.goals
    assert goal.instruction_text.startswith("i want it, and price lower than ")
    assert (goal.goal_options, goal.weight) == ((value,), 1.0)
    assert wishes(goal) == ("type", "attrs", "price", f"opt:{value}")


@pytest.mark.parametrize("options, message", [
    ({"data": "/no/such/place"}, "no items_shuffle_1000.json and items_ins_v2_1000.json or"),
    ({"search": "google"}, "'memory' or 'lucene'"), ({"split": "dev"}, "train, test, both"),
    ({"prompt": "loud"}, "'agent' or 'original'"), ({"human_goals": True}, "no items_human_ins"),
    ({"win_reward": "much"}, "could not convert"), ({"split": []}, "train, test, both"),
])  # fmt: skip
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        world(**options)


def test_a_published_split_needs_500_goals(tmp_path):
    small_folder(tmp_path)
    with pytest.raises(ValueError, match="empty"):
        world(data=str(tmp_path), published_split=True, split="train")


@pytest.mark.parametrize("split, seed", [("test", 10_000), ("train", 10**9)])
def test_a_seed_beyond_the_split(split, seed):
    env = world(split=split)
    with pytest.raises(ValueError, match=f"seed {seed} is beyond the"):
        env.reset(seed=seed)


def test_a_step_before_the_first_reset():
    with pytest.raises(gymnasium.error.ResetNeeded):
        world().unwrapped.step("search[tea]")


def test_lucene_says_what_it_needs(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(SystemExit) as stop:
        common.make_envs("webshop", 1, '{"search": "lucene"}')
    assert stop.value.code == 2 and "pip install bm25s PyStemmer" in capsys.readouterr().err


def test_nothing_optional_is_imported():
    code = (
        "import sys, real_envs, common; env = common.make_envs('webshop', 2)[0]; env.reset(seed=1)"
    )
    code += "; print([m for m in ('spacy', 'bm25s', 'Stemmer', 'rapidfuzz') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=HOUSE, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
    assert "60 products" in done.stderr and done.stderr.count("WebShop:") == 1


@pytest.fixture(scope="module")
def small_policy():
    return common.load_policy(common.Args(env="webshop"))


@pytest.mark.parametrize("seed", [*range(10), *range(webshop.HELD_OUT, webshop.HELD_OUT + 10)])
def test_the_small_policy_can_say_what_can_be_done(small_policy, seed):
    """Every action of a random play comes back from its tokens, and no text has unknown words."""
    tokenizer, draw, env = small_policy.tokenizer, random.Random(seed), world()
    text, info = env.reset(seed=seed)
    words = re.search("find me (.*) with [a-z]+:", env.session.goal.instruction_text.lower())[1]
    for _ in range(15):
        assert tokenizer.unk_token_id not in small_policy.encode(text)
        actions = [a.replace("<your query>", words.replace(",", "")) for a in info["actions"]]
        for action in actions:
            ids = small_policy.encode(action)
            assert tokenizer.decode(ids, skip_special_tokens=True) == action
            assert [i in small_policy.stops for i in ids] == [False] * (len(ids) - 1) + [True]
        text, _, ended, _, info = env.step(draw.choice(actions))
        if ended:
            break


def test_the_small_policy_plays_badly_but_not_hopelessly(small_policy):
    """On held-out tasks; hardly anything that it does is impossible."""
    envs = common.make_envs("webshop", 64)
    played = common.rollout(small_policy, envs, range(webshop.HELD_OUT, webshop.HELD_OUT + 64))
    steps = [step for episode in played for step in episode.steps]
    assert 0.1 <= sum(episode.success for episode in played) / 64 <= 0.4
    assert sum(step.valid for step in steps) >= 0.8 * len(steps)


def test_the_limit_of_15_turns_truncates_and_does_not_terminate():
    (env,) = common.make_envs("webshop", 1)
    env.reset(seed=0)
    ends = [env.step("search[shoe]")[2:4] for _ in range(15)]
    assert ends == [(False, False)] * 14 + [(False, True)]


try:
    from hypothesis import example, given, settings
    from hypothesis import strategies as st
except ImportError:
    pass
else:
    brackets = st.text(st.sampled_from("ab[] \n\r\x85\u2028") | st.characters(), max_size=30)

    @given(brackets)
    @example("click[]]")
    @example("a[b\nc]")
    def test_actions_are_parsed_as_the_expression_says(text):
        match = re.match(r"(.+)\[(.+)\]", text)
        assert parse_action(text) == (match and (match[1], match[2].lower()))

    action = st.one_of(
        brackets,
        brackets.map("search[{}]".format),
        st.integers(0, 30),  # what can be clicked, by its place
        st.sampled_from(["search[shoes]", "search[item_page tea]", "search[search_results tea]"]),
    )

    @settings(deadline=None, max_examples=60)
    @given(st.integers(0, 2 * webshop.HELD_OUT - 1), st.lists(action, max_size=25))
    def test_any_play_keeps_the_protocol(seed, actions):
        env = world()
        text, info = env.reset(seed=seed)
        known, over, total = {}, False, 0.0
        for act in actions:
            if isinstance(act, int):
                act = info["actions"][act % len(info["actions"])]
            before = env.describe(), info["state"], 0.0
            text, reward, ended, limit, info = env.step(act)
            total, over = total + reward, over or ended
            assert ended == over and not limit and isinstance(text, str)
            if not info["valid"]:
                assert (text, info["state"], reward) == before
            assert info["facts"] <= set(env.prerequisites) and info["scope"] == env.session.asin
            assert info["success"] == (over and info["facts"] == set(env.prerequisites))
            assert env.session.page in ("search", *URL_WORDS)
            # Equal keys are equal pages and facts.
            page = env.describe(), info["facts"], info["actions"]
            assert known.setdefault(info["state"], page) == page
        assert total == float(info["success"])

    @settings(deadline=None, max_examples=100)
    @given(st.text(max_size=12), st.text(max_size=12))
    def test_scores_are_symmetric_and_bounded(a, b):
        score = token_set_score(a, b)
        assert 0 <= score <= 100 and score == token_set_score(b, a)
