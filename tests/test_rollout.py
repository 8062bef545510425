"""The rollout: tokens in, tokens out; one KV cache; prefixes; a chat model with long actions."""

import gymnasium
import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import common

CHATML = (
    "{% for m in messages %}{{ '<|im_start|> ' + m.role + ' ' + m.content + ' <|im_end|> ' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|> assistant ' }}{% endif %}"
)


class Echo(gymnasium.Env):
    """Answers with what it got; ends after `seed % 5 + 1` steps."""

    action_space = observation_space = gymnasium.spaces.Text(1000)
    instructions = "say something"

    def reset(self, *, seed=None, options=None):
        self.left, self.heard = seed % 5 + 1, []
        return "go on", {}

    def step(self, action):
        self.heard.append(action)
        self.left -= 1
        info = {"valid": False, "success": self.left == 0}
        return "go on " * (1 + self.left), 1.0, self.left == 0, False, info


@pytest.fixture
def chat():
    """A random chat model: 24 words, replies of any length that end with <|im_end|> or are cut."""
    words = [
        "<|im_start|>",
        "<|im_end|>",
        "<unk>",
        "system",
        "user",
        "assistant",
        "say",
        "something",
        "go",
        "on",
    ]
    words += ["<action>", "</action>", *"abcdefghijkl"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<|im_end|>", chat_template=CHATML,
        additional_special_tokens=["<|im_start|>"],
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, max_position_embeddings=400, eos_token_id=1, bos_token_id=None,
            initializer_range=0.3,
        )
    )  # fmt: skip
    return common.Policy(model, None, tokenizer, common.Args(max_new_tokens=6))


def plain_logprobs(policy, episode):
    """From one plain forward pass over the whole transcript."""
    with torch.no_grad():
        logits = policy.core(torch.tensor([episode.token_ids])).logits[0] / policy.args.temperature
    return [logits[i - 1].log_softmax(-1)[episode.token_ids[i]] for _, i in episode.action_tokens]


def check_transcript(policy, episode, env):
    """What must hold of every episode."""
    assert len(episode.logprobs) == len(episode.token_ids)
    own = dict.fromkeys(i for _, i in episode.action_tokens)
    assert all(x == 0.0 for i, x in enumerate(episode.logprobs) if i not in own)
    decode = policy.tokenizer.decode
    assert decode(
        list(map(episode.token_ids.__getitem__, own)), skip_special_tokens=True
    ) == " ".join(step.action for step in episode.steps if step.action)
    first = episode.steps[0].observation
    ids, end = policy.opening(env.unwrapped.instructions, first), 0
    for step, following in zip(episode.steps, [*episode.steps[1:], None]):
        start, end = step.tokens
        assert episode.token_ids[:start] == ids
        ids = episode.token_ids[:end]
        if following:
            assert step.next_state == following.state
            ids = ids + policy.turn(following.observation, ids[-1])
    assert end == len(episode.token_ids)


def test_what_begins_a_text_comes_once(chat):
    """The template writes it; the tokenizer, which would write it again, is told not to."""
    tokenizer = chat.tokenizer
    special = tokenizer.unk_token, tokenizer.unk_token_id
    once = processors.TemplateProcessing(single=f"{special[0]} $A", special_tokens=[special])
    tokenizer.backend_tokenizer.post_processor = once
    tokenizer.chat_template = f"{special[0]} {CHATML}"
    assert tokenizer.encode("go on")[0] == special[1]
    policy = common.Policy(chat.model, None, tokenizer, chat.args)
    assert policy.opening("say something", "go on").count(special[1]) == 1
    assert special[1] not in policy.turn("go on", 12)


class Talker(Echo):
    """One after the other has much to say: all others wait, and their cache gets holes."""

    def reset(self, *, seed=None, options=None):
        self.seed, self.turns = seed, 0
        return "go on", {}

    def step(self, action):
        self.turns += 1
        return "go on " * (12 if self.turns % 8 == self.seed else 1), 0.0, self.turns > 8, False, {}


def test_the_cache_does_not_keep_its_holes(chat):
    widths = []
    hook = chat.core.register_forward_pre_hook(lambda _, x: widths.append(x[1].shape[1]))
    with hook:
        episodes = common.rollout(chat, [Talker() for _ in range(8)], range(8))
    longest = max(len(e.token_ids) for e in episodes)
    assert longest < max(widths) < 1.6 * longest  # it would be twice that long
    for e in episodes:
        recorded = [e.logprobs[i] for _, i in e.action_tokens]
        assert recorded == pytest.approx([x.item() for x in plain_logprobs(chat, e)], abs=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_and_transcripts_of_the_toy(policy, envs, temperature):
    """Ragged batches, episodes that end at different turns: as one plain pass over each."""
    policy.args = common.Args(temperature=temperature)
    torch.manual_seed(0)
    episodes = common.rollout(policy, envs, range(16))
    assert len({len(e.steps) for e in episodes}) > 1
    for e in episodes:
        check_transcript(policy, e, envs[0])
        recorded = [e.logprobs[i] for _, i in e.action_tokens]
        assert recorded == pytest.approx([x.item() for x in plain_logprobs(policy, e)], abs=1e-4)
        assert e.success == (e.reward == 1.0) and e.truncated == (not e.success)
        assert e.steps[0].info["state"] == e.steps[0].next_state
    assert policy.meter["env_steps"] == sum(len(e.steps) for e in episodes)
    assert policy.meter["policy_tokens"] == sum(len(e.action_tokens) for e in episodes)


def test_logprobs_and_transcripts_of_a_chat_model(chat):
    envs = [Echo() for _ in range(4)]
    torch.manual_seed(0)
    episodes = common.rollout(chat, envs, [0, 1, 2, 3, 4, 7, 9])
    assert [len(e.steps) for e in episodes] == [1, 2, 3, 4, 5, 3, 5]
    ends = {len(range(*s.tokens)) for e in episodes for s in e.steps}
    assert len(ends) > 3 and max(ends) == 6
    for e in episodes:
        check_transcript(chat, e, envs[0])
        recorded = [e.logprobs[i] for _, i in e.action_tokens]
        assert recorded == pytest.approx([x.item() for x in plain_logprobs(chat, e)], abs=1e-4)
        for step in e.steps:
            ids = e.token_ids[slice(*step.tokens)]
            assert step.info["cut"] == (ids[-1] != 1) and ids.count(1) == (ids[-1] == 1)
            assert step.valid == step.info["cut"]  # cut is marked; else Echo's own verdict counts
    new, _ = common.token_logprobs(chat, episodes)
    old = torch.tensor([e.logprobs[i] for e in episodes for _, i in e.action_tokens])
    assert (new - old).abs().max() < 1e-4


def test_the_end_of_a_turn_comes_once(chat):
    """Sampled, it is not written again; not sampled (a cut action), the template writes it."""
    end, start, user = chat.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|im_start|>", "user"])
    assert chat.turn("go", end)[:2] == [start, user]
    assert chat.turn("go", 20)[:3] == [end, start, user]
    episodes = common.rollout(chat, [Echo()], [4] * 20)
    for e in episodes:
        pairs = zip(e.token_ids, e.token_ids[1:])
        assert all(pair != (end, end) for pair in pairs)
        own = {i for _, i in e.action_tokens}
        given = [token for i, token in enumerate(e.token_ids) if i not in own]
        assert given.count(start) == 3 + 2 * (len(e.steps) - 1)


def test_the_action_is_what_stands_in_the_tag(chat):
    env, spoken = Echo(), iter(["x <action> a b </action> y", " c d "])
    chat.tokenizer.decode = lambda ids, **_: next(spoken)
    (episode,) = common.rollout(chat, [env], [1])
    assert env.heard == ["a b", "c d"]
    assert [step.action for step in episode.steps] == ["x <action> a b </action> y", " c d "]


def test_invalid_actions_cost_and_cut_ones_do_not(chat):
    chat.args.invalid_penalty = 0.1
    for e in common.rollout(chat, [Echo() for _ in range(4)], [4] * 4):
        assert all(s.reward == pytest.approx(1.0 if s.info["cut"] else 0.9) for s in e.steps)
        assert e.reward == pytest.approx(sum(s.reward for s in e.steps))


def test_a_full_context_truncates(chat):
    chat.core.config.max_position_embeddings = 40
    (episode,) = common.rollout(chat, [Echo()], [4])
    assert episode.truncated and not episode.success and len(episode.steps) < 5
    assert len(episode.token_ids) <= 40


def test_one_seed_one_group_but_not_one_rollout(policy, envs):
    """The members of a group share their task, not their sampling; a seed gives one whole run."""
    runs = []
    for _ in range(2):
        torch.manual_seed(3)
        runs.append(common.rollout(policy, envs, [1, 1, 1, 1, 2, 2, 2, 2]))
    first, second = runs
    assert [e.token_ids for e in first] == [e.token_ids for e in second]
    assert len({e.steps[0].observation for e in first[:4]}) == 1
    assert first[0].steps[0].observation != first[4].steps[0].observation
    assert len({tuple(s.action for s in e.steps) for e in first[:4]}) > 1


def test_greedy_twice_agrees(policy, envs):
    runs = [common.rollout(policy, envs, [1, 2, 3], temperature=0) for _ in range(2)]
    assert [e.token_ids for e in runs[0]] == [e.token_ids for e in runs[1]]


def test_more_tasks_than_environments(policy):
    """Waves: the same episodes in the same order, each with its own task."""
    few = common.make_envs("keydoor", 2)
    greedy = common.rollout(policy, few, [1, 2, 3, 4, 5], temperature=0)
    many = common.rollout(policy, common.make_envs("keydoor", 5), [1, 2, 3, 4, 5], temperature=0)
    assert [e.token_ids for e in greedy] == [e.token_ids for e in many]


@pytest.mark.parametrize("slip", [0.0, 0.5])
def test_a_prefix_goes_on_from_the_same_state(policy, slip):
    """Same task, steps, tokens and luck up to step t; then its own way."""
    envs = common.make_envs("keydoor", 12, f'{{"slip": {slip}}}')
    torch.manual_seed(1)
    episodes = common.rollout(policy, envs, [1, 2, 3])
    prefixes = [(e, t) for e in episodes for t in (0, 1, 7, len(e.steps))]
    for (earlier, t), e in zip(prefixes, common.rollout(policy, envs, prefixes=prefixes)):
        assert e.task == earlier.task and e.steps[:t] == earlier.steps[:t]
        if t == len(earlier.steps):
            assert e.steps == earlier.steps and e.token_ids == earlier.token_ids
            assert (e.success, e.truncated) == (earlier.success, earlier.truncated)
            assert e.final_observation == earlier.final_observation
            continue
        assert e.steps[t].state == earlier.steps[t].state
        assert e.steps[t].observation == earlier.steps[t].observation
        start = earlier.steps[t].tokens[0]
        assert e.token_ids[:start] == earlier.token_ids[:start]
        assert e.logprobs[:start] == earlier.logprobs[:start]
        check_transcript(policy, e, envs[0])
    again = common.rollout(policy, envs, prefixes=[(episodes[0], 5)] * 12)
    assert len({tuple(s.action for s in e.steps) for e in again}) > 6


def test_luck_is_each_rollouts_own(policy):
    """With slip, members of a group that do the same still see different outcomes."""
    envs = common.make_envs("keydoor", 8, '{"slip": 0.9}')
    east = {policy.tokenizer.convert_tokens_to_ids("east"): 1000.0}
    episodes = common.rollout(policy, envs, [5] * 8, logit_bias=lambda episode: east)
    assert {s.action for e in episodes for s in e.steps} == {"east"}
    assert len({tuple(s.next_state for s in e.steps) for e in episodes}) > 4


def test_bias_bends_sampling_and_stays_with_the_step(policy, envs):
    """Every other action is biased; the recorded log-probabilities are those of the bent policy."""
    toggle = policy.tokenizer.convert_tokens_to_ids("toggle")

    def bias(episode):
        return {toggle: 3.0} if len(episode.steps) % 2 else None

    episodes = common.rollout(policy, envs, [1, 2, 3, 4], logit_bias=bias)
    share = [[s.action == "toggle" for e in episodes for s in e.steps[k::2]] for k in (0, 1)]
    assert sum(share[1]) / len(share[1]) > 2 * sum(share[0]) / len(share[0])
    old = torch.tensor([e.logprobs[i] for e in episodes for _, i in e.action_tokens])
    new, _ = common.token_logprobs(policy, episodes)
    assert (new - old).abs().max() < 1e-4
    e = episodes[0]
    logits = policy.core(torch.tensor([e.token_ids])).logits[0]
    logits[e.steps[1].tokens[0] - 1, toggle] += 3.0
    i = e.steps[1].tokens[0]
    exact = logits[i - 1].log_softmax(-1)[e.token_ids[i]].item()
    assert e.logprobs[i] == pytest.approx(exact, abs=1e-4)


def test_passes_without_gradient_are_counted(policy, envs):
    episodes = common.rollout(policy, envs, [1, 2])
    before = dict(policy.meter)
    with torch.no_grad():
        common.token_logprobs(policy, episodes)
    assert policy.meter["extra_passes"] == 2
    tokens = sum(len(e.action_tokens) for e in episodes)
    assert policy.meter["policy_tokens"] == before["policy_tokens"] + tokens


def test_bf16_arithmetic_with_fp32_weights(policy, envs):
    """The path of a GPU, on a CPU: close log-probabilities, fp32 gradients."""
    policy.precision, policy.bf16 = torch.autocast("cpu", torch.bfloat16), True
    episodes = common.rollout(policy, envs, [1, 2])
    new, _ = common.token_logprobs(policy, episodes)
    old = torch.tensor([e.logprobs[i] for e in episodes for _, i in e.action_tokens])
    assert (new - old).abs().max() < 0.3
    new.sum().backward()
    assert all(p.grad.dtype == p.dtype == torch.float32 for p in policy.model.parameters())


def test_lora_reference_is_the_base():
    """A fresh adapter has KL exactly 0; after a step it has not, and the reference is the same."""
    pytest.importorskip("peft", reason="LoRA is an optional extra")
    from test_common import updated

    policy = common.load_policy(common.Args(lora_rank=4, kl=0.1))
    envs = common.make_envs("keydoor", 4)
    torch.manual_seed(0)
    episodes = common.rollout(policy, envs, [1] * 4)
    advantages = [torch.ones(len(e.steps)) * (-1) ** i for i, e in enumerate(episodes)]

    def reference():
        with torch.no_grad(), policy.model.disable_adapter():
            return common.token_logprobs(policy, episodes, policy.reference)[0]

    before = reference()
    metrics, _ = updated(policy, episodes, advantages)
    assert metrics["kl"] == 0
    weights = [p for p in policy.model.parameters() if p.requires_grad]
    assert (
        0 < sum(p.numel() for p in weights) < sum(p.numel() for p in policy.core.parameters()) / 2
    )
    with torch.no_grad():
        for p in weights:
            p.add_(torch.randn_like(p) * 0.1)
    assert torch.equal(before, reference())
    new, _ = common.token_logprobs(policy, episodes)
    assert (new - before).abs().max() > 1e-3
    for e, part in zip(episodes, new.detach().split([len(e.action_tokens) for e in episodes])):
        for (_, i), logprob in zip(e.action_tokens, part.tolist()):
            e.logprobs[i] = logprob
    assert updated(policy, episodes, advantages)[0]["kl"] > 1e-6


class Fragile(Echo):
    """Crashes in the reset of task 3, and in the second step of task 4."""

    def reset(self, *, seed=None, options=None):
        self.task = seed
        if seed == 3:
            raise RuntimeError("no such game")
        return super().reset(seed=seed)

    def step(self, action):
        if self.task == 4 and self.heard:
            raise RuntimeError("out of memory")
        observation, reward, ended, limit, info = super().step(action)
        return observation, reward, ended, limit, info | {"metrics": {"score": float(self.task)}}


gymnasium.register("test/Fragile-v0", Fragile, max_episode_steps=9)


def test_a_crash_fails_its_own_episode_and_no_other(policy, capfd):
    """It is counted, and it neither stops the rollout nor flatters the success rate."""
    envs = [Fragile() for _ in range(5)]
    episodes = common.rollout(policy, envs, [1, 3, 2, 4, 6])
    assert [len(e.steps) for e in episodes] == [2, 0, 3, 0, 2]
    assert [e.success for e in episodes] == [True, False, True, False, True]
    told = capfd.readouterr()
    assert "no such game" in told.out + told.err and "out of memory" in told.out + told.err


@pytest.mark.parametrize("reward", [None, np.nan])
def test_an_episode_without_a_score_is_a_failed_one(policy, reward):
    class Unscored(Fragile):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, reward if self.task == 2 else 1.0, *rest

    episodes = common.rollout(policy, [Unscored() for _ in range(3)], [1, 2, 6])
    assert [len(e.steps) for e in episodes] == [2, 0, 2] and not episodes[1].success


def test_a_model_with_capped_logits_is_refused(tmp_path, capsys):
    """Its output layer alone would give other probabilities than the rollout's."""
    config = transformers.Gemma2Config(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, head_dim=8,
        num_attention_heads=2, num_key_value_heads=1, final_logit_softcapping=0.01,
    )  # fmt: skip
    transformers.Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    common.load_policy(common.Args()).tokenizer.save_pretrained(tmp_path)
    with pytest.raises(SystemExit):
        common.load_policy(common.Args(model=str(tmp_path)))
    assert "its logits are capped or scaled" in capsys.readouterr().err


def test_dropout_is_off(policy, envs):
    """The update sees the probabilities that were sampled from, whatever the model's dropout."""
    policy.model.config.attention_dropout = 0.5
    for module in policy.model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.5
    episodes = common.rollout(policy, envs, [1, 2])
    new, _ = common.token_logprobs(policy, episodes)
    old = torch.tensor([e.logprobs[i] for e in episodes for _, i in e.action_tokens])
    assert (new - old).abs().max() < 1e-4


def test_crashes_in_the_log(tmp_path):
    seeds = tmp_path / "seeds.txt"
    seeds.write_text("1\n3\n")  # 1,000,001 and 1,000,003: both are well
    model = str(common.HERE / "toy_envs/toy_lm")
    args = common.Args(
        env="test/Fragile-v0", model=model, out=str(tmp_path / "run"), eval_seeds=str(seeds)
    )
    run = common.Run(args)
    episodes = common.rollout(run.policy, run.envs, [1, 3, 2, 4, 6, 6])
    credit = [[0.5] * len(e.steps) for e in episodes]
    run.log(episodes, common.update(run, episodes, credit))
    row = run.rows[-1]
    assert row["failed"] == 2 and row["episodes"] == 6 and row["success"] == pytest.approx(4 / 6)
    assert row["score"] == pytest.approx((1 + 2 + 6 + 6) / 4)


def test_a_task_without_a_small_policy_needs_a_model(capsys):
    with pytest.raises(SystemExit):
        common.load_policy(common.Args(env="test/Fragile-v0"))
    assert "no small policy of its own, please give --model" in capsys.readouterr().err
