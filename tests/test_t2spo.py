"""T2SPO: worked numbers, the support, the regressors, the small network, and the probe."""

import sys
import types

import numpy as np
import pytest
import t2spo
import torch
from conftest import random_groups, walk
from test_run import fails

import common
import grpo

PATH = "ABCDEF"


def random_distances(episodes, seed):
    rng = np.random.default_rng(seed)
    return [rng.choice([0.0, np.nan, 1.0, 3.5, 20.0], len(e.steps)) for e in episodes]


def test_worked_numbers():
    """Of methods.md 5; a lone rollout has A = 0, so that c is all there is."""
    d, c = [np.array([5, 4, 4.2, 2, 1])], [0.9081, -0.2047, 1.5761, 0.9081, 0.9081]
    win, loss = walk(7, PATH, 1), walk(7, PATH)
    for weight in (1.0, 0.5):
        (credit,) = t2spo.t2spo_advantages([win], d, weight=weight)
        assert credit == pytest.approx(weight * np.array(c), abs=1e-4)
    (credit,) = t2spo.t2spo_advantages([win], d, weight=1.0, clip=0.9)
    assert credit == pytest.approx([0.9, -0.2047, 0.9, 0.9, 0.9], abs=1e-4)
    (credit,) = t2spo.t2spo_advantages([loss], d, weight=1.0)  # the end of a failure: F = 0
    assert credit[-1] == 0 and credit[:-1] / credit[0] == pytest.approx(
        np.arcsinh([1, -0.2, 2.2, 1]) / np.arcsinh(1)
    )
    (credit,) = t2spo.t2spo_advantages([win], [np.array([4.0, 2, 2, 2, 2])], gamma=0.5, weight=1.0)
    assert credit / credit[0] == pytest.approx(np.arcsinh([3, 1, 1, 1, 2]) / np.arcsinh(3))


def test_without_a_prediction_it_is_grpo_to_the_last_bit():
    for seed in range(5):
        episodes = random_groups(seed)
        plain = grpo.grpo_advantages(episodes)
        nothing = t2spo.Support(1000, t2spo.KNN()).distances(episodes)
        assert np.isnan(np.concatenate(nothing)).all()
        for rule in (
            t2spo.t2spo_advantages(episodes, nothing),
            t2spo.t2spo_advantages(episodes, random_distances(episodes, seed), weight=0.0),
        ):
            assert all(a.shape == b.shape and (a == b).all() for a, b in zip(plain, rule))


def test_bounds_mask_and_permutation():
    for seed in range(10):
        episodes = random_groups(seed) + [common.Episode(0, []), walk(0, "AAB", 1)]
        distances = random_distances(episodes, seed)
        plain = grpo.grpo_advantages(episodes)
        credit = t2spo.t2spo_advantages(episodes, distances, weight=0.7, clip=1.2)
        for e, d, a, b in zip(episodes, distances, plain, credit):
            assert np.isfinite(b).all() and (abs(b - a) <= 0.7 * 1.2 + 1e-12).all()
            for t, step in enumerate(e.steps):
                following = d[t + 1] if t + 1 < len(d) else 0.0
                if step.state == step.next_state or np.isnan(d[t] + following):
                    assert b[t] == a[t]
        order = np.random.default_rng(seed).permutation(len(episodes))
        shuffled = t2spo.t2spo_advantages(
            [episodes[i] for i in order], [distances[i] for i in order], weight=0.7, clip=1.2
        )
        for place, i in enumerate(order):
            assert shuffled[place] == pytest.approx(credit[i], abs=1e-12)


def test_the_unit_is_that_of_the_valid_steps_of_the_whole_batch():
    """Steps that count do not depend on how many others do not."""
    win, idle = walk(1, PATH, 1), walk(2, "AAAAAA")
    d = np.array([5.0, 4, 4.2, 2, 1])
    alone, with_idle = [
        t2spo.t2spo_advantages(batch, [d] * len(batch))[0] for batch in ([win], [win, idle])
    ]
    assert (alone == with_idle).all()


class Clock:
    """A stand-in for a regressor that keeps what it is given."""

    def fit(self, X, y):
        self.X, self.y = X, y

    def predict(self, X):
        self.asked = X
        return np.arange(len(X)) - 1.0


def test_the_support_takes_successes_and_forgets_the_oldest():
    support = t2spo.Support(6, Clock())
    long, failed, short = walk(1, "ABCDE", 1), walk(1, "ABCDEABC"), walk(1, "AFG", 1)
    support.insert([long, failed])
    assert support.memory["rows"] == [
        ("at A", 0, 4), ("at B", 1, 3), ("at C", 2, 2), ("at D", 3, 1)
    ]  # fmt: skip
    support.insert([short])
    assert support.memory["rows"][-2:] == [("at A", 0, 2), ("at F", 1, 1)]
    support.insert([failed, common.Episode(1, [])])
    assert len(support.memory["rows"]) == 6
    support.insert([short])
    assert [row[1] for row in support.memory["rows"]] == [2, 3, 0, 1, 0, 1]


def test_a_support_that_is_too_small_predicts_nothing():
    long, short, asked = walk(1, "AB" * 20, 1), walk(1, "ABCDEFGHIJ", 1), [walk(1, "ABC")]
    for inserted, enough in [
        ([long], False), ([short, short], False), ([short] * 3, True), ([long, long], True)
    ]:  # fmt: skip
        support = t2spo.Support(1000, t2spo.KNN())
        support.insert(inserted)
        (d,) = support.distances(asked)
        assert d.shape == (2,) and np.isfinite(d).all() == enough == (not np.isnan(d).any())


def test_predictions_go_where_they_belong_and_stay_in_range():
    clock = Clock()
    support = t2spo.Support(1000, clock)
    support.insert([walk(1, "ABCDEFGHIJKLM", 1)] * 2)
    batch = [walk(2, "AB"), common.Episode(2, []), walk(2, "CDEF"), walk(2, "AB" * 20)]
    one, empty, three, many = support.distances(batch)
    assert clock.y.tolist() == [*range(12, 0, -1)] * 2 and clock.X.shape == (24, t2spo.FEATURES)
    assert one.tolist() == [0] and len(empty) == 0 and three.tolist() == [0, 1, 2]  # -1 is clipped
    assert many.max() == 12  # the largest target


def test_a_batch_is_scored_before_it_is_inserted(tmp_path, monkeypatch):
    """In the script's own loop, and the log and a resumed run have the memory."""
    calls = []
    for name in ("distances", "insert"):
        method = getattr(t2spo.Support, name)

        def spy(self, episodes, name=name, method=method):
            calls.append((name, len(self.memory["rows"])))
            return method(self, episodes)

        monkeypatch.setattr(t2spo.Support, name, spy)
    seeds = tmp_path / "seeds.txt"
    seeds.write_text("0\n")
    small = {"tasks": 1, "group_size": 6, "eval_every": 1, "eval_seeds": str(seeds)}
    small |= {"env_options": '{"size": 3}', "regressor": "knn"}
    out = str(tmp_path / "run")
    t2spo.train(t2spo.Args(**small, iterations=2, out=out))
    t2spo.train(t2spo.Args(**small, iterations=3, resume=out))
    assert [name for name, _ in calls] == ["distances", "insert"] * 3
    assert all(calls[k][1] == calls[k + 1][1] for k in (0, 2, 4))  # nothing came in before
    assert calls[2][1] > 0 and calls[4][1] > calls[2][1]
    state = torch.load(tmp_path / "run/checkpoint.pt", weights_only=True)
    assert state["rows"][-1]["support"] == len(state["memory"]["rows"]) > calls[4][1]


def test_memory_comes_back_exactly(tmp_path):
    first, again = t2spo.Support(40, t2spo.GP()), t2spo.Support(40, t2spo.GP())
    batch = [e for seed in range(9) for e in random_groups(seed)]
    first.insert(batch)
    torch.save(first.memory, tmp_path / "memory.pt")
    again.memory.update(torch.load(tmp_path / "memory.pt", weights_only=True))
    assert first.memory == again.memory
    for support in (first, again):
        support.insert(batch[:5])
    for one, other in zip(first.distances(batch), again.distances(batch)):
        assert np.isfinite(one).all() and (one == other).all()


def test_hashed_words():
    """Directions stay with their nouns, numbers count, and every process agrees."""
    encode = t2spo.hashed_words
    assert (encode("key 2 east 1 north") != encode("key 1 east 2 north")).any()
    assert (encode("key 2 east . goal 1 east") != encode("key 1 east . goal 2 east")).any()
    difference = encode("key 3 east . goal 1 north") - encode("key 1 east . goal 1 north")
    assert np.sort(difference)[-2:].tolist() == [0, 2] and difference.min() == 0
    assert encode("door open 3 west").nonzero()[0].tolist() == [363, 738, 813]


def test_features_are_fitted_on_the_support_alone():
    rng = np.random.default_rng(0)
    context, queries = rng.normal(3, 2, (50, 20)), rng.normal(0, 9, (30, 20))
    context[:, 4], queries[:, 4] = 1.0, 7.0  # never varied in the support: unknown
    X, Z = t2spo.to_features(context, queries)
    assert X.shape == (50, 8) and Z.shape == (30, 8)
    assert X.mean(0) == pytest.approx(np.zeros(8), abs=1e-9)
    covariance = X.T @ X / 50
    assert covariance == pytest.approx(np.eye(8), abs=1e-9)
    assert t2spo.to_features(context, queries[:3])[1] == pytest.approx(Z[:3])
    assert t2spo.to_features(context, context)[1] == pytest.approx(X)
    X, Z = t2spo.to_features(context[:, :5], queries[:, :5])
    assert (X[:, 4:] == 0).all() and (Z[:, 4:] == 0).all() and X[:, 3].std() == pytest.approx(1)


REGRESSORS = {"pfn": t2spo.PFN, "gp": t2spo.GP, "knn": t2spo.KNN}


@pytest.mark.parametrize("name", REGRESSORS)
@pytest.mark.parametrize("function", ["linear", "bent"])
def test_regressors_recover_a_simple_function(name, function):
    """Better than the mean by far (neighbours: just better), and in any unit."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 8))
    slope = 2 * X[:, 0] - X[:, 1]
    y = slope if function == "linear" else np.abs(slope)
    noisy = y + 0.2 * rng.normal(size=300)
    for center, scale in ((0, 1), (20, 7)):
        regressor = REGRESSORS[name]()
        regressor.fit(X[:200], center + scale * noisy[:200])
        error = np.abs((regressor.predict(X[200:]) - center) / scale - y[200:]).mean()
        # A V that falls as much as it rises is the hardest for pfn, whose prior has few of them.
        factor = 0.9 if name == "knn" else 0.8 if (name, function) == ("pfn", "bent") else 0.5
        assert error < factor * np.abs(y[200:] - y[:200].mean()).mean()


def test_gp_is_exact_without_noise_and_the_mean_far_away():
    X = np.linspace(-2, 2, 30)[:, None]
    gp = t2spo.GP()
    gp.fit(X, np.sin(X[:, 0]) + 5)
    assert gp.predict(X) == pytest.approx(np.sin(X[:, 0]) + 5, abs=0.02)
    assert gp.predict(np.array([[99.0]])) == pytest.approx([5], abs=1e-6)


@pytest.mark.parametrize("name", REGRESSORS)
def test_queries_and_context_have_no_order(name):
    rng = np.random.default_rng(2)
    X, y, queries = rng.normal(size=(60, 8)), rng.normal(10, 3, 60), rng.normal(size=(40, 8))
    regressor, order = REGRESSORS[name](), rng.permutation(60)
    regressor.fit(X, y)
    whole = regressor.predict(queries)
    assert regressor.predict(queries[::-1])[::-1] == pytest.approx(whole, abs=1e-3)
    assert np.hstack([regressor.predict(queries[:1]), regressor.predict(queries[1:])]) == (
        pytest.approx(whole, abs=1e-3)
    )
    regressor.fit(X[order], y[order])
    assert regressor.predict(queries) == pytest.approx(whole, abs=1e-3)


def test_constant_targets_are_foretold():
    X = np.random.default_rng(3).normal(size=(30, 8))
    for make in REGRESSORS.values():
        regressor = make()
        regressor.fit(X, np.full(30, 4.0))
        assert regressor.predict(X).shape == (30,) and np.isfinite(regressor.predict(X)).all()


def test_tabpfn_needs_package_and_checkpoint(capsys, tmp_path, monkeypatch):
    checkpoint = tmp_path / "weights.ckpt"
    fails(capsys, lambda: t2spo.make_regressor("tabpfn", str(checkpoint)), "no file", "--help")
    checkpoint.touch()
    monkeypatch.setitem(sys.modules, "tabpfn", None)  # as if it were not installed
    fails(capsys, lambda: t2spo.make_regressor("tabpfn", str(checkpoint)), "pip install tabpfn")
    package = types.SimpleNamespace(TabPFNRegressor=lambda model_path: model_path)
    monkeypatch.setitem(sys.modules, "tabpfn", package)
    assert t2spo.make_regressor("tabpfn", str(checkpoint)) == str(checkpoint)


@pytest.fixture(scope="module")
def played():
    """Three rounds of KeyDoor in a small room, and the exact distances of the last."""
    policy, envs = common.load_policy(common.Args()), common.make_envs("keydoor", 64, '{"size": 5}')
    torch.manual_seed(5)
    rounds = [
        common.rollout(policy, envs, np.repeat(np.arange(8) + 8 * k, 8).tolist()) for k in range(3)
    ]
    task, exact = envs[0].unwrapped, []
    for e in rounds[-1]:
        task.reset(seed=e.task)
        exact.append(np.array([task.distance(step.state) for step in e.steps], float))
    return rounds, exact


def steps_by_direction(episodes, exact, credit):
    """The credit of steps towards the goal, and of all others that changed something; without the
    last of each rollout."""
    kinds = {True: [], False: []}
    for e, d, c in zip(episodes, exact, credit):
        for step, gain, value in zip(e.steps, -np.diff(d), c):
            if step.state != step.next_state:
                kinds[gain > 0].append(value)
    return kinds[True], kinds[False]


def test_a_step_towards_the_goal_gets_more(played):
    """The probe. With exact distances, every step towards the goal gets more than any other of the
    same rollout; with distances foretold from the toy LM's few successes, most do."""
    rounds, exact = played
    credit = t2spo.t2spo_advantages(rounds[-1], exact)
    plain = grpo.grpo_advantages(rounds[-1])
    towards, other = steps_by_direction(rounds[-1], exact, [c - a for c, a in zip(credit, plain)])
    assert len(towards) > 100 and len(other) > 100 and min(towards) > 0.3 > 0.01 > max(other)
    support = t2spo.Support(1000)
    for batch in rounds[:-1]:
        support.insert(batch)
    credit = t2spo.t2spo_advantages(rounds[-1], support.distances(rounds[-1]))
    towards, other = steps_by_direction(rounds[-1], exact, [c - a for c, a in zip(credit, plain)])
    assert np.mean(towards) > np.mean(other) + 0.1
