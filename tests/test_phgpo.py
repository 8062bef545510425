"""PhGPO: worked numbers, the table against brute force, the fused policy on both sides."""

import itertools
import json
import math

import gymnasium
import numpy as np
import phgpo
import pytest
import torch
from conftest import HOUSE, random_groups

import common
import grpo

TOOLS = ("cut", "drill", "glue", "paint", "weld")
SPOKEN = ("north", "south", "east", "west", "take")  # words that the toy LM says in a room


class Tools(gymnasium.Env):
    """Looks like a room, but the moves are tools: four in an order that the task fixes, and the
    right one goes on. `names`: other tools, for what a tokenizer cannot tell apart."""

    action_space = observation_space = gymnasium.spaces.Text(1000)
    instructions, small_policy = "find the order", HOUSE / "toy_envs" / "toy_lm"

    def __init__(self, names=SPOKEN):
        self.names = tuple(names)

    def reset(self, *, seed=None, options=None):
        self.done, far = 0, 1 + seed % 2
        self.recipe = [None, self.names[:4], self.names[3::-1]][far]
        text = f"key {far} south . door closed {far} east . goal 3 east . carrying nothing"
        return text, {"actions": self.names, "state": 0}

    def step(self, action):
        valid, right = action in self.names, action == self.recipe[self.done]
        self.done += right
        over = self.done == 4
        info = {"tool": action if valid else None, "valid": valid, "matched": self.done / 4}
        info |= {"state": self.done, "success": over}
        text = f"key 2 south 1 east . door closed 3 east . goal {self.done} east . carrying nothing"
        return text, right / 4, over, False, info


gymnasium.register("test/Tools-v0", Tools, max_episode_steps=10)


def used(*tools, q=1.0, task=7, text="build chair", success=None):
    """A rollout that used these tools (None: no tool), of quality q."""
    steps = [common.Step(text, str(tool), info={"tool": tool}) for tool in tools]
    if steps:
        steps[-1].reward, steps[-1].info["matched"] = float(q == 1), q
    return common.Episode(task, steps, q == 1 if success is None else success)


def random_uses(seed, texts=("build chair", "build red lamp", "paint it")):
    rng = np.random.default_rng(seed)
    for _ in range(rng.integers(1, 20)):
        tools = rng.choice([*TOOLS, None], rng.integers(0, 9)).tolist()
        yield used(*tools, q=rng.choice([0.0, 0.1, 0.2, 0.7, 1.0]), text=rng.choice(texts).item())


def everything(pheromones, tasks=(None,)):
    """The level of every edge there can be."""
    edges = itertools.product(TOOLS, TOOLS)
    return {(u, v, x): pheromones.level(u, v, x) for u, v in edges for x in tasks}


def test_worked_levels():
    pheromones, levels = phgpo.Pheromones(), []
    for q in (1.0, 1.0, 0.0, 0.5):
        pheromones.update([used("cut", "glue", q=q)])
        levels.append(pheromones.level("cut", "glue"))
    assert levels == pytest.approx([1.4900, 1.9751, 1.9553, 2.1858], abs=1e-4)
    assert pheromones.level("glue", "cut") == pytest.approx(0.99**4)  # nobody used it


def bias_of(table, beta, tools=TOOLS, previous="cut"):
    """What the guide adds after `previous`; tool i has the token i."""
    pheromones = phgpo.Pheromones()
    pheromones.memory["table"] = table
    guide = phgpo.pheromone_guide(pheromones, {tool: i for i, tool in enumerate(tools)}, beta)
    return guide(used(previous))


@pytest.mark.parametrize(
    "beta, fused", [(0.7, (0.4022, 0.5307, 0.0670)), (1, (6 / 19, 12 / 19, 1 / 19))]
)
def test_worked_distributions(beta, fused):
    bias = bias_of({("cut", "drill"): 4.0}, beta, TOOLS[:3])
    logits = torch.tensor([[0.6, 0.3, 0.1]]).log()
    assert common.log_softmax(logits, 1.0, [bias]).exp()[0].tolist() == pytest.approx(
        fused, abs=1e-4
    )


def test_quality():
    assert phgpo.quality(used("cut", q=0.4)) == 0.4
    assert phgpo.quality(used("cut", q=0.4, success=True)) == 1.0
    assert phgpo.quality(common.Episode(7, [common.Step("o", "a")])) == 0.0
    assert phgpo.quality(common.Episode(7, [])) == 0.0


def test_an_edge_counts_once_in_a_rollout_and_steps_without_tool_are_passed_over():
    pheromones = phgpo.Pheromones()
    loop = used("cut", None, "glue", "cut", None, None, "glue", "cut")
    loop.steps[1].info = {}  # not even reported
    pheromones.update([loop, used(None), used(), used("cut")])
    assert pheromones.memory["table"] == pytest.approx(
        {("cut", "glue"): 1.49, ("glue", "cut"): 1.49}
    )
    pheromones.update([used("cut", "glue")] * 3)
    assert pheromones.level("cut", "glue") == pytest.approx(1.49 * 0.99 + 1.5)
    assert pheromones.level("glue", "cut") == pytest.approx(1.49 * 0.99)


def test_the_table_is_that_of_a_dense_one():
    """Brute force: a level for every pair of tools, from the start, batch by batch."""
    for seed in range(5):
        pheromones = phgpo.Pheromones(low=0.9, high=3.0, evaporation=0.05)
        dense = np.ones((5, 5))
        for batch in range(6):
            episodes = list(random_uses(10 * seed + batch))
            dense *= 0.95
            for u, v in itertools.product(range(5), range(5)):
                for e in episodes:
                    tools = [step.info["tool"] for step in e.steps if step.info["tool"]]
                    if any(tools[i : i + 2] == [TOOLS[u], TOOLS[v]] for i in range(len(tools))):
                        dense[u, v] += 0.5 * e.steps[-1].info["matched"]
            dense = dense.clip(0.9, 3.0)
            pheromones.update(episodes)
            assert list(everything(pheromones).values()) == pytest.approx(dense.ravel().tolist())


def test_bounds_and_where_levels_settle():
    pheromones = phgpo.Pheromones()
    for _ in range(600):
        pheromones.update([used("cut", "glue", q=0.2), used("cut", "weld", q=0.2)] * 2)
        pheromones.update([used("cut", "drill")] * 8)
    levels = [pheromones.level("cut", tool) for tool in ("drill", "paint")]
    assert levels == [20.0, 0.5]
    settled = 0.2 / (1 - 0.99**2)  # after the deposit: 0.5 * 0.4 every second batch
    assert pheromones.level("cut", "glue") == pytest.approx(settled * 0.99, rel=1e-3)
    for task in ("build chair", "build", "else"):
        for value in everything(pheromones, [task]).values():
            assert 0.5 <= value <= 20.0 + 1e-12


def test_the_order_of_rollouts_means_nothing():
    for seed in range(10):
        episodes, tables = [*random_uses(seed), *random_uses(seed + 50)], []
        for order in (slice(None), np.random.default_rng(seed).permutation(len(episodes))):
            pheromones = phgpo.Pheromones(high=4.0)  # so that the clip has a part in it
            pheromones.capacity = 6
            pheromones.update(np.array(episodes, object)[order].tolist())
            tables.append((everything(pheromones, (None, "build lamp")), pheromones.memory["bank"]))
        assert tables[0] == tables[1]


def test_level_by_task():
    """By hand: cosine with "build red chair" is 1, 2/3 and 0 ("paint it" is no neighbour)."""
    pheromones = phgpo.Pheromones(task_weight=0.4)
    level = lambda *edge: pheromones.level(*edge, task="build red chair")  # noqa: E731
    assert level("cut", "glue") == 1.0  # an empty bank: the table alone
    pheromones.update([used("cut", "glue", q=0.5, text="build red lamp")])
    table = 0.99 + 0.25
    assert level("cut", "glue") == pytest.approx(0.8 * table + 0.2 * (1 + 19 * 0.5))
    pheromones.update(
        [
            used("cut", "glue", "paint", text="build red chair"),
            used("cut", "weld", text="paint it"),
            used("cut", "drill", q=0.2, text="build red chair"),  # too bad to be remembered
        ]
    )
    table = 0.99 * table + 0.5
    score = (2 / 3 * 0.5 + 1.0) / (2 / 3 + 1)
    assert pheromones.level("cut", "glue") == pytest.approx(table)
    assert level("cut", "glue") == pytest.approx(0.6 * table + 0.4 * (1 + 19 * score))
    table, score = 0.99 * 0.99 + 0.5, 1 / (2 / 3 + 1)
    assert level("glue", "paint") == pytest.approx(0.6 * table + 0.4 * (1 + 19 * score))
    assert level("cut", "weld") == pytest.approx(0.6 * table + 0.4)
    assert level("weld", "cut") == pytest.approx(0.6 * 0.99**2 + 0.4)
    assert pheromones.level("cut", "glue", "something else") == pheromones.level("cut", "glue")


def test_similarity():
    assert phgpo.similarity("a a b", "a b b") == pytest.approx(4 / 5)
    assert phgpo.similarity("a b", "b a") == 1.0 and phgpo.similarity("a", "") == 0.0


def test_the_bank_is_bounded_and_its_oldest_go_first():
    pheromones = phgpo.Pheromones()
    for name in range(60):
        pheromones.update([used("cut", "glue", text=f"build {name}")] * 10)
    kept = [text for _, text, _ in pheromones.memory["bank"]]
    assert len(kept) == 512 and kept[0] == "build 8" and kept[-1] == "build 59"


def test_memory_comes_back(tmp_path):
    """Through a checkpoint, key by key; and it goes on from there as the first would have."""
    first, second = phgpo.Pheromones(), phgpo.Pheromones()
    first.update(list(random_uses(1)))
    levels = everything(first, (None, "build lamp"))
    torch.save(first.memory, tmp_path / "memory.pt")
    second.level("cut", "glue", "build lamp")
    second.memory.update(torch.load(tmp_path / "memory.pt", weights_only=True))
    assert first.memory == second.memory and everything(second, (None, "build lamp")) == levels
    for pheromones in (first, second):
        pheromones.update(list(random_uses(2)))
    assert everything(first, ("paint it",)) == everything(second, ("paint it",))
    assert everything(first) != {key: level for key, level in levels.items() if key[2] is None}


def test_the_guide():
    table = {("cut", "glue"): 4.0, ("glue", "weld"): 0.5}
    assert bias_of(table, 2.0) == {0: 0, 1: 0, 2: 2 * math.log(4), 3: 0, 4: 0}
    assert bias_of(table, 1.0, previous="glue")[4] == math.log(0.5)
    guide = phgpo.pheromone_guide(phgpo.Pheromones(), {"cut": 0}, 0.7)
    assert guide(used()) is None and guide(used(None, None)) is None
    assert guide(used("cut", None)) is not None


@pytest.fixture
def tools(policy):
    """The toy LM, tempered so that it tries everything; the environment above; its tokens."""
    policy.args = common.Args(temperature=2.0)
    envs = common.make_envs("tools", 16)
    return policy, envs, phgpo.tool_tokens(policy, envs[0])


def followers(episodes, previous):
    """The share of each tool among those that followed `previous`."""
    tools = map(phgpo.tools_used, episodes)
    after = [v for used in tools for u, v in itertools.pairwise(used) if u == previous]
    return {v: after.count(v) / len(after) for v in SPOKEN}


def test_what_successes_share_is_sampled_more_often(tools):
    """The probe: west after east in all successes, north after east in failures as often."""
    policy, envs, tokens = tools
    pheromones = phgpo.Pheromones()
    good, bad = used("south", "east", "west"), used("south", "east", "north", q=0.0)
    for _ in range(3):
        pheromones.update([good, bad, bad, good])
    shares = []
    for beta in (0.0, 0.7, 1.4):
        guide = phgpo.pheromone_guide(pheromones, tokens, beta)
        shares.append(followers(common.rollout(policy, envs, range(48), logit_bias=guide), "east"))
    for less, more in itertools.pairwise(shares):
        assert more["west"] > less["west"] + 0.1 and more["north"] < less["north"] + 0.05


def test_ratio_is_one_with_pheromone_and_tau_stands_still(tools):
    """New and old are the same pi_beta, also when the table has moved on in between."""
    policy, envs, tokens = tools
    pheromones = phgpo.Pheromones()
    pheromones.update([used("east", "north", "east", "south", "take", "west")] * 8)
    guide = phgpo.pheromone_guide(pheromones, tokens, 0.7)
    episodes = common.rollout(policy, envs, range(16), logit_bias=guide)
    assert all(e.steps[0].info["logit_bias"] is None for e in episodes)
    old = torch.tensor([e.logprobs[i] for e in episodes for _, i in e.action_tokens])
    pheromones.update([used("east", "west", "north", "take")] * 8)
    new, _ = common.token_logprobs(policy, episodes)
    assert (new - old).abs().max() < 1e-4
    for e in episodes:  # and without its bias it is another distribution: the authors' mistake
        for step in e.steps:
            step.info["logit_bias"] = None
    assert (common.token_logprobs(policy, episodes)[0] - old).abs().max() > 0.5


def test_gradient_is_that_of_the_fused_policy(tools):
    """log pi_beta(a) = log pi(a) + beta log tau(a) - log sum_b pi(b) tau(b)^beta, and its gradient
    in the weights, from plain probabilities over the whole vocabulary."""
    policy, envs, tokens = tools
    pheromones = phgpo.Pheromones()
    pheromones.update([used(*SPOKEN, *SPOKEN[::-2])] * 8)
    guide = phgpo.pheromone_guide(pheromones, tokens, 0.7)
    (e,) = common.rollout(policy, envs, [1], logit_bias=guide)
    weights = [w for w in policy.model.parameters() if w.requires_grad]
    ours = common.token_logprobs(policy, [e])[0]
    pi = (policy.model(torch.tensor([e.token_ids])).logits[0].double() / 2.0).softmax(-1)
    exact, previous, bent = [], None, 0
    for step in e.steps:
        strength = torch.ones(pi.shape[-1], dtype=torch.double)
        for tool in SPOKEN if previous else ():
            tau = pheromones.level(previous, tool, e.steps[0].observation)
            strength[policy.encode(tool)[0]] = tau**0.7
        bent += strength.max() > 1.5
        fused = pi[step.tokens[0] - 1] * strength
        exact.append(fused[e.token_ids[step.tokens[0]]].log() - fused.sum().log())
        previous = step.info["tool"] or previous
    assert bent > 3 and ours.tolist() == pytest.approx([x.item() for x in exact], abs=1e-4)
    gradients = [torch.autograd.grad(sum(x), weights) for x in (ours, exact)]
    for a, b in zip(*gradients):
        assert (a - b).norm() <= 1e-3 * b.norm() + 1e-5


def test_surrogate_gradient_at_ratio_one_is_the_policy_gradient():
    """Over three tools, exactly: sum_a pi_beta(a) A(a) by finite differences, and the loss."""
    bias = {0: 0.0, 1: 0.7 * math.log(4.0), 2: -0.3}
    logits = torch.tensor([0.6, 0.3, 0.1]).log().requires_grad_()
    credit = torch.tensor([1.0, -0.5, 2.0])

    def value(x):
        weight = np.exp(x + np.array(list(bias.values())))
        return (weight / weight.sum()) @ credit.double().numpy()

    fused = common.log_softmax(logits[None], 1.0, [bias])[0]
    loss, _, _ = common.policy_loss(fused, fused.detach(), credit)
    (ours,) = torch.autograd.grad((fused.detach().exp() * loss).sum(), logits)
    at = logits.detach().double().numpy()
    exact = [(value(at + d) - value(at - d)) / 2e-5 for d in 1e-5 * np.eye(3)]
    assert (-ours).tolist() == pytest.approx(exact, abs=1e-5)


def test_advantages_are_those_of_grpo():
    for seed in range(5):
        episodes = random_groups(seed)
        for std in (True, False):
            pairs = zip(grpo.grpo_advantages(episodes, std), phgpo.grpo_advantages(episodes, std))
            assert all((a == b).all() for a, b in pairs)


@pytest.fixture
def small(tmp_path):
    """Options of a small run, by name of its folder."""
    (tmp_path / "seeds.txt").write_text("0\n1\n2\n3\n")

    def options(out, **more):
        more = {"iterations": 2, "out": str(tmp_path / out), **more}
        return dict(env="tools", tasks=2, group_size=4, eval_every=2, lr=1e-3, temperature=2.0,
                    eval_seeds=str(tmp_path / "seeds.txt"), **more)  # fmt: skip

    return options


def results(options):
    """Metrics without clocks, and the checkpoint."""
    out = common.Path(options.get("resume") or options["out"])
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    timed = ("seconds", "_per_s")
    lines = [{k: v for k, v in line.items() if not k.endswith(timed)} for line in lines]
    return lines, torch.load(out / "checkpoint.pt", weights_only=True)


def same_weights(a, b):
    return all(torch.equal(w, b["weights"][name]) for name, w in a["weights"].items())


def test_beta_0_is_grpo_to_the_last_bit(small):
    """The same rollouts, credit and weights, whatever the table holds; with beta they differ."""
    runs = {"grpo": (grpo, {}), "zero": (phgpo, {"beta": 0.0}), "beta": (phgpo, {"beta": 0.7})}
    for name, (method, options) in runs.items():
        method.train(method.Args(**small(name), **options))
        runs[name] = results(small(name))
    (plain, a), (zero, b), (guided, c) = runs.values()
    assert b["memory"]["table"]
    assert zero[-1].pop("eval_guided") == zero[-1]["eval_success"]
    assert zero == plain and same_weights(a, b)
    assert guided != plain and not same_weights(a, c) and 0 <= guided[-1]["eval_guided"] <= 1


def test_resume_is_the_same_run(small):
    whole, half = small("whole", iterations=4), small("half")
    phgpo.train(phgpo.Args(**whole))
    phgpo.train(phgpo.Args(**half))
    resumed = {**half, "resume": half["out"], "iterations": 4}
    phgpo.train(phgpo.Args(**resumed))
    (metrics, a), (again, b) = results(whole), results(resumed)
    assert metrics == again and same_weights(a, b)
    assert a["memory"] == b["memory"] and a["memory"]["table"] and a["memory"]["recalled"]


def fails(capsys, call, *words):
    with pytest.raises(SystemExit) as error:
        call()
    err = capsys.readouterr().err
    assert error.value.code == 2 and len(err.splitlines()) == 1
    assert all(word in err for word in words), err


def test_mistakes(capsys, small, policy):
    weld = Tools(["cut", "weld-a", "weld-b"])  # the toy tokenizer knows neither weld
    fails(capsys, lambda: phgpo.tool_tokens(policy, weld), "'weld-a' and 'weld-b'", "same token")
    assert len(phgpo.tool_tokens(policy, Tools(["cut", "weld-a", "glue"]))) == 3
    options = {**small("keydoor"), "env": "keydoor"}
    fails(capsys, lambda: phgpo.train(phgpo.Args(**options)), "keydoor", "'tool'")
