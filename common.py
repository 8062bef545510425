"""What never differs between methods: data, policy, rollout, log-probabilities, loss, update, run.

Tokens go in and tokens come out: a transcript is only ever appended to. In shapes, N counts action
tokens and V the vocabulary. Left out: several GPUs, inference engines, value networks.
"""

import contextlib
import copy
import hashlib
import importlib.util
import json
import re
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import gymnasium
import numpy as np
import torch
import transformers
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm

transformers.utils.logging.disable_progress_bar()
HERE = Path(__file__).resolve().parent
TRAIN_SEEDS = 1_000_000  # training draws its tasks below, held-out tasks are counted from here


@dataclass
class Step:
    """One turn: what the policy read, what it wrote, what the environment answered."""

    observation: str  # text before the action
    action: str  # the policy's own text, decoded
    reward: float = 0.0  # environment reward of this step
    state: Hashable = None  # identity of the state acted in: equal keys are the same state
    next_state: Hashable = None
    valid: bool = True  # False: the environment did not understand the action
    info: dict = field(default_factory=dict)  # the environment's info after the step
    tokens: tuple[int, int] = (0, 0)  # [start, end) of the action's tokens in Episode.token_ids
    luck: int = 0  # seed of the environment's chance in this step


@dataclass
class Episode:
    """One rollout. Rollouts with the same `task` form a group, wherever they stand in a list."""

    task: Hashable
    steps: list[Step]
    success: bool = False
    truncated: bool = False  # ended by a limit, not by the environment
    initial_info: dict = field(default_factory=dict)
    token_ids: list[int] = field(default_factory=list)  # the transcript, as read and as sampled
    logprobs: list[float] = field(default_factory=list)  # of each sampled token, 0.0 elsewhere
    final_observation: str | None = None  # text after the last action

    @property
    def reward(self):
        """The outcome: the sum of the step rewards, NaN where no step was played."""
        return sum(step.reward for step in self.steps) if self.steps else np.nan

    @property
    def action_tokens(self):
        """Pairs (step, position in the transcript) of the tokens that are the policy's own."""
        return [(t, i) for t, step in enumerate(self.steps) for i in range(*step.tokens)]


def normalize_within(values, keys, std=True):
    """Values [n] against their peers, those of the same key: minus mean, over unbiased std + 1e-6.

    Exactly 0 for a key with one member or only equal ones (to 1e-9), and for values not finite.

    >>> normalize_within([1, 0, 0, 5], ["a", "a", "a", "b"]).round(4).tolist()
    [1.1547, -0.5773, -0.5773, 0.0]
    """
    values, result, members = np.asarray(values, float), np.zeros(len(values)), defaultdict(list)
    for index in np.flatnonzero(np.isfinite(values)):
        members[keys[index]].append(index)
    for indices in members.values():
        peers = values[indices]
        if np.ptp(peers) > 1e-9:
            result[indices] = (peers - peers.mean()) / (peers.std(ddof=1) + 1e-6 if std else 1.0)
    return result


def option(default, text):
    return field(default=default, metadata={"help": text})


@dataclass
class Args:
    """The options that all scripts share; a method's own Args extends them."""

    env: str = option("keydoor", "a registered environment, by its id or its bare name")
    env_options: str = option("{}", "JSON object of the environment's own options")
    model: str = option("", "model folder, hub name or .gguf; default: the task's small policy")
    lora_rank: int = option(0, "train a LoRA adapter of this rank (0: all weights; needs peft)")
    seed: int = option(1, "seed of tasks, sampling and luck")
    iterations: int = option(30, "rollout and update, this many times")
    tasks: int = option(8, "tasks of an iteration")
    group_size: int = option(8, "rollouts of a task")
    temperature: float = option(1.0, "sampling temperature")
    max_new_tokens: int = option(64, "longest action, in tokens")
    invalid_penalty: float = option(0.0, "taken off a step's reward if it was not understood")
    lr: float = option(3e-4, "AdamW learning rate, constant")
    epochs: int = option(1, "optimizer steps on each batch of rollouts")
    micro_batch: int = option(16, "transcripts of one forward and backward pass")
    clip: float = option(0.2, "the ratio is clipped to 1 - clip .. 1 + clip")
    kl: float = option(0.0, "weight of the KL to the initial policy")
    eval_every: int = option(10, "iterations between evaluations, each with a checkpoint")
    eval_seeds: str = option(str(HERE / "eval_seeds.txt"), "held-out tasks, a number on each line")
    eval_temperature: float = option(1.0, "sampling temperature of the evaluation, 0: greedy")
    out: str = option("", "run folder, must not exist; without it a dated one under runs/")
    resume: str = option("", "run folder to go on with; its options are the defaults")


def parse_args(args_class):
    """Reads the command line; @FILE: options from a file; --resume: the saved ones are defaults."""
    parser = transformers.HfArgumentParser(args_class, fromfile_prefix_chars="@")
    if resume := parser.parse_args().resume:
        with explain(f"resume {resume}"):
            parser.set_defaults(**json.loads(Path(resume, "args.json").read_text()))
    (args,) = parser.parse_args_into_dataclasses()
    for name, value in vars(args).items():
        least = int(name not in ("seed", "lora_rank", "iterations"))
        if type(value) is int and value < least:
            parser.error(f"argument --{name}: must be at least {least}")
    return args


@contextlib.contextmanager
def explain(attempt):
    """What goes wrong inside is the user's to mend: one clear line, exit code 2, no traceback."""
    try:
        yield
    except Exception as error:
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        print(f"{Path(sys.argv[0]).name}: error: cannot {attempt}: {reason}", file=sys.stderr)
        raise SystemExit(2) from None


class Policy:
    """A causal language model that plays. `core` is the model inside a LoRA wrapper, if any."""

    def __init__(self, model, reference, tokenizer, args):
        self.model, self.tokenizer, self.args = model.eval(), tokenizer, args
        # What the KL compares with. PEFT puts its adapter into it, to be switched off.
        self.reference, self.core = reference, reference if args.lora_rank else model
        self.device, self.meter = model.device, Counter(began=time.perf_counter())  # cost so far
        # Arithmetic in bf16 on a GPU. Weights stay fp32: in bf16 a step of 1e-6 would vanish.
        self.bf16 = self.device.type == "cuda" and torch.cuda.is_bf16_supported()
        self.precision = torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)
        self.encode = lambda text: tokenizer.encode(text, add_special_tokens=False)
        # What the chat template puts before and after an observation that follows an action.
        text = self.render(("user", "[[first]]"), ("assistant", "[[reply]]"), ("user", "[[next]]"))
        self.between, self.after = text.split("[[reply]]")[-1].split("[[next]]")
        ids, eos = self.encode(self.between), model.generation_config.eos_token_id
        self.end = [i for i in ids[:1] if i in tokenizer.all_special_ids]  # [<|im_end|>], say
        self.stops = {*self.end, tokenizer.eos_token_id, *(eos if isinstance(eos, list) else [eos])}

    def render(self, *turns):
        """The chat template's text for (role, text) pairs, up to where the next reply begins."""
        chat = [{"role": role, "content": text} for role, text in turns if text]
        return self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)

    def opening(self, instructions, observation):
        """Token ids of a transcript before its first action."""
        return self.encode(self.render(("system", instructions), ("user", observation)))

    def turn(self, observation, last):
        """Token ids from the `last` token of an action to the next action; no end comes twice."""
        ids = self.encode(self.between + observation + self.after)
        return ids[1:] if [last] == self.end else ids


def load_policy(args):
    """The policy `args.model`: a folder, a hub name or a .gguf file; on the GPU if there is one.
    Without it the small policy that the environment brings along."""
    env = None if args.model else make_envs(args.env, 1, args.env_options)[0].unwrapped
    model = args.model or str(getattr(env, "small_policy", ""))
    path, load = Path(model), transformers.AutoModelForCausalLM.from_pretrained
    name, file = (path.parent, path.name) if path.suffix == ".gguf" else (model, None)
    with explain(f"load the model {model!r}"):
        if not model:
            raise ValueError(f"{args.env} has no small policy of its own, please give --model")
        if not path.exists() and (file or model.count("/") != 1):
            raise FileNotFoundError("no such folder or file, and hub names are owner/name")
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, gguf_file=file)
        unpacked = file and transformers.GgufConfig(dequantize=True)  # or it could not be saved
        model = load(name, gguf_file=file, quantization_config=unpacked, dtype=torch.float32)
        ids = torch.arange(8)[None]
        with torch.no_grad():  # the rollout reads logits, token_logprobs the output layer alone
            plain = model.get_output_embeddings()(model.base_model(ids).last_hidden_state)
            if not torch.allclose(plain, model(ids).logits, atol=1e-4):
                raise ValueError("its logits are capped or scaled, which is not supported")
        model = reference = model.to("cuda" if torch.cuda.is_available() else "cpu")
        if args.lora_rank:
            peft = importlib.import_module("peft")  # an optional extra: pip install peft
            torch.manual_seed(args.seed)  # the adapter begins at random
            config = peft.LoraConfig(r=args.lora_rank, target_modules="all-linear")
            model = peft.get_peft_model(model, config)
        elif args.kl:
            reference = copy.deepcopy(model)
        return Policy(model, reference, tokenizer, args)


def make_envs(name, count, options="{}"):
    """`count` environments, by id ("toy/KeyDoor-v0") or by bare name ("keydoor")."""
    with explain(f"make the environment {name!r}"):
        for package in ("toy_envs", "real_envs"):  # importing one registers what it offers
            if importlib.util.find_spec(package):
                importlib.import_module(package)
        known = {spec.name.lower(): id for id, spec in gymnasium.registry.items()}
        options = {"disable_env_checker": True, **json.loads(options)}
        envs = [gymnasium.make(known.get(name.lower(), name), **options) for _ in range(count)]
        if not isinstance(envs[0].action_space, gymnasium.spaces.Text):
            raise TypeError("it does not take text")
        return envs


def ask(episode, call, *args, **options):
    """The answer of an episode's environment. None if it crashes, or its reward is not a number,
    which leaves the episode without steps: failed, counted as such, and nobody's peer."""
    try:
        answer = call(*args, **options)
        if len(answer) == 5 and not np.isfinite(answer[1]):
            raise ValueError(f"a reward of {answer[1]}")
        return answer
    except Exception as error:
        tqdm.write(f"task {episode.task}: the environment crashed: {error!r}")
        episode.steps, episode.success = [], False


def play(policy, env, episode, logit_bias):
    """One episode at its environment, as a coroutine: each `yield` asks for a token and gives its
    logit bias. Steps that are there already are played again: same task, actions and luck."""
    if not (answer := ask(episode, env.reset, seed=episode.task)):
        return
    observation, info = answer
    new = policy.opening(env.unwrapped.instructions, observation)
    episode.initial_info = {**info, "instructions": env.unwrapped.instructions}
    ids, t, ended, limit = episode.token_ids, 0, False, False
    while not (ended or limit):
        if t == len(episode.steps):  # nothing left to play again: the policy's turn
            ids += new
            episode.logprobs += [0.0] * len(new)
            start, bias = len(ids), logit_bias(episode)
            yield bias
            while ids[-1] not in policy.stops and len(ids) < start + policy.args.max_new_tokens:
                yield None
            reply = policy.tokenizer.decode(ids[start:], skip_special_tokens=True)
            span, luck = (start, len(ids)), int(torch.randint(2**62, ()))
            step = Step(observation, reply, info={"logit_bias": bias}, tokens=span, luck=luck)
            episode.steps.append(step)
        step, state = episode.steps[t], info.get("state", observation)
        env.unwrapped.np_random = np.random.default_rng(step.luck)
        tagged = re.findall(r"<action>(.*?)</action>", step.action, re.DOTALL) or [step.action]
        if not (answer := ask(episode, env.step, tagged[-1].strip())):
            return
        observation, reward, ended, limit, info = answer
        policy.meter["env_steps"] += 1
        cut = ids[step.tokens[1] - 1] not in policy.stops  # by --max-new-tokens: not nonsense
        step.state, step.next_state = state, info.get("state", observation)
        step.info, step.valid = {**step.info, **info, "cut": cut}, cut or info.get("valid", True)
        step.reward = float(reward) - policy.args.invalid_penalty * (not step.valid)
        new, t = policy.turn(observation, ids[step.tokens[1] - 1]), t + 1
        room = policy.core.config.max_position_embeddings - policy.args.max_new_tokens
        limit |= step.tokens[1] + len(new) > room
    episode.success, episode.final_observation = info.get("success", False), observation
    episode.truncated = limit and not ended


@torch.no_grad()
def rollout(policy, envs, seeds=(), prefixes=(), temperature=None, logit_bias=lambda episode: None):
    """Plays one episode for each seed, then one from each prefix, in waves of len(envs); all of a
    wave together, turn by turn, over one KV cache: every token goes through the model once.

    Args: seeds: the tasks, equal ones form a group. prefixes: pairs (episode, t): go on from the
        state before step t of an earlier episode. temperature: default args.temperature; 0 is
        greedy. logit_bias: episode so far -> {token: bias} or None, added to the tempered logits of
        the next action's first token; it stays in the step's info, and so in the update.
    """
    starts = [*((Episode(seed, []), 0) for seed in seeds), *prefixes]
    if len(starts) > len(envs):
        waves = [starts[k : k + len(envs)] for k in range(0, len(starts), len(envs))]
        return [e for w in waves for e in rollout(policy, envs, (), w, temperature, logit_bias)]
    began, episodes = time.perf_counter(), []
    for earlier, t in starts:
        end = earlier.steps[t - 1].tokens[1] if t else 0
        ids, logprobs = earlier.token_ids[:end], earlier.logprobs[:end]
        steps = [replace(step) for step in earlier.steps[:t]]
        episodes.append(Episode(earlier.task, steps, token_ids=ids, logprobs=logprobs))
    games = [play(policy, env, episode, logit_bias) for env, episode in zip(envs, episodes)]
    bias = {e: next(game, "over") for e, game in enumerate(games)}  # of the next token
    live = [e for e in bias if bias[e] != "over"]  # the rows of the batch
    cache, mask = transformers.DynamicCache(), torch.zeros(len(live), 0, dtype=torch.bool)
    temperature = policy.args.temperature if temperature is None else temperature
    while live:
        new = [episodes[e].token_ids[read:] for e, read in zip(live, mask.sum(1).tolist())]
        if any(len(row) == 1 for row in new):  # an action is unfinished: the others wait
            new = [row if len(row) == 1 else [] for row in new]
        ids = pad_sequence([torch.LongTensor(row) for row in new], True, -1, "left")
        mask = torch.cat([mask, ids >= 0], 1)  # padded on the left of what is new
        places = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        inputs = [tensor.to(policy.device) for tensor in (ids.clamp(min=0), mask, places)]
        with policy.precision:  # the cache goes by position: transformers 5.24 renamed it
            logits = policy.core(*inputs, cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        logp = log_softmax(logits, temperature, [bias[e] for e in live])
        pick = logp.exp().multinomial(1) if temperature else logp.argmax(-1, True)
        policy.meter.update(policy_tokens=sum(map(bool, new)), rollout_tokens=sum(map(len, new)))
        for e, row, token, logprob in zip(live, new, pick.tolist(), logp.gather(1, pick).tolist()):
            if row:
                episodes[e].token_ids += token
                episodes[e].logprobs += logprob
                bias[e] = next(games[e], "over")
        keep = torch.tensor([bias[e] != "over" for e in live])
        if not keep.all():  # episodes that end leave the batch
            live, mask = [e for e in live if bias[e] != "over"], mask[keep]
            cache.batch_select_indices(keep.to(policy.device))
        holes = mask.shape[1] - int(mask.sum(1).max()) if live else 0
        if 3 * holes > mask.shape[1]:  # turns of unequal length leave them in the cache: close up
            order = mask.byte().argsort(stable=True)[:, holes:]
            mask, order = mask.gather(1, order), order.to(policy.device)[:, None, :, None]
            for layer in cache.layers:
                layer.keys = layer.keys.take_along_dim(order, 2)
                layer.values = layer.values.take_along_dim(order, 2)
    seconds, failed = time.perf_counter() - began, sum(not e.steps for e in episodes)
    policy.meter.update(rollout_seconds=seconds, failed=failed)
    return episodes


def log_softmax(logits, temperature, bias):
    """log softmax(logits / temperature + bias), fp32 [n, V]; bias: n of {token: value} or None."""
    logits = logits.float() / (temperature or 1.0)
    for row, extra in enumerate(bias):
        if extra:
            logits[row, list(extra)] += logits.new_tensor(list(extra.values()))
    return logits.log_softmax(-1)


def token_logprobs(policy, episodes, core=None, chunk=4096):
    """Log-probability and entropy of all action tokens, in order: two [N]; temperature and bias as
    in the rollout. Only action tokens reach the output layer, `chunk` at a time and again in the
    backward pass, so that no tensor is larger than [chunk, V]."""
    core = core or policy.core
    where = [(row, i, e.steps[t]) for row, e in enumerate(episodes) for t, i in e.action_tokens]
    bias = [i == step.tokens[0] and step.info.get("logit_bias") for _, i, step in where]
    row, column, _ = zip(*where)
    ids = pad_sequence([torch.tensor(e.token_ids) for e in episodes], True).to(policy.device)
    if not torch.is_grad_enabled():  # somebody's extra: a teacher, a reference
        policy.meter.update(extra_passes=len(episodes), policy_tokens=len(row))

    def score(hidden, targets, bias):
        logprobs = log_softmax(core.get_output_embeddings()(hidden), policy.args.temperature, bias)
        entropy = torch.special.entr(logprobs.detach().exp()).sum(-1)
        return logprobs.gather(1, targets[:, None])[:, 0], entropy

    with policy.precision:
        hidden = core.base_model(input_ids=ids, use_cache=False).last_hidden_state
        inputs = hidden.roll(1, 1)[row, column], ids[row, column], bias  # i - 1 predicts token i
        chunks = [[x[k : k + chunk] for x in inputs] for k in range(0, len(row), chunk)]
        parts = [checkpoint(score, *chunk, use_reentrant=False) for chunk in chunks]
    return [torch.cat(part) for part in zip(*parts)]


def policy_loss(new, old, advantages, clip=0.2, ref=None, kl=0.0):
    """The clipped surrogate of PPO, 1707.06347 eq. 7, plus the KL term of GRPO, 2402.03300 eq. 4:
    -min(ratio A, clip(ratio) A) + kl (exp(ref - new) - (ref - new) - 1). All are [N], one a token;
    returns loss, k3 estimate of KL(new || ref), and whether the clip holds the token."""
    ratio = (new - old).exp()
    free, held = ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages
    gap = torch.zeros_like(new) if ref is None else ref - new
    k3 = gap.exp() - gap - 1
    return kl * k3 - torch.minimum(free, held), k3, held < free


def update(run, episodes, advantages):
    """Optimizer steps on one batch of rollouts, with the mean over all its action tokens as loss;
    returns the metrics of credit and update. `advantages` has for each episode [len(steps)], or
    [len(token_ids)] for credit that differs within an action; what stands at tokens that are not
    the policy's is never read. Episodes without credit have no gradient and are left out, unless
    there is a KL term."""
    args, policy, began, sums, rows = run.args, run.policy, time.perf_counter(), Counter(), []
    for e, a in zip(episodes, advantages):
        credit = [float(a[i if len(a) == len(e.token_ids) else t]) for t, i in e.action_tokens]
        covered = {t for (t, _), value in zip(e.action_tokens, credit) if value}
        sums.update(tokens=len(credit), size=sum(map(abs, credit)), covered=len(covered))
        if covered or (credit and args.kl):
            rows.append((e, credit))
    rows.sort(key=lambda row: len(row[0].token_ids))
    as_reference = policy.model.disable_adapter if args.lora_rank else contextlib.nullcontext
    for epoch in range(args.epochs):
        for k in range(0, len(rows), args.micro_batch):
            batch, credit = zip(*rows[k : k + args.micro_batch])
            old = [e.logprobs[i] for e in batch for _, i in e.action_tokens]
            old, credit = torch.tensor([old, sum(credit, [])], device=policy.device)
            (new, entropy), ref = token_logprobs(policy, batch), None
            if args.kl:
                with torch.no_grad(), as_reference():
                    ref, _ = token_logprobs(policy, batch, policy.reference)
            loss, kl, held = policy_loss(new, old, credit, args.clip, ref, args.kl)
            (loss.sum() / sums["tokens"]).backward()
            gap = 0.0 if epoch else (new - old).abs().max().item()
            sums["ratio_error"] = max(sums["ratio_error"], gap)
            sums.update(trained=len(new), kl=kl.sum().item(), entropy=entropy.sum().item())
            sums.update(clip_fraction=held.sum().item(), read=sum(len(e.token_ids) for e in batch))
        norm = torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        if not norm.isfinite() or sums["ratio_error"] > (1.0 if policy.bf16 else 1e-4):
            raise FloatingPointError(f"no update: gradient norm {norm}, first log ratio {gap}")
        run.optimizer.step()
        run.optimizer.zero_grad()
    seconds = policy.meter["update_seconds"] = time.perf_counter() - began
    means = {k: sums[k] / max(sums["trained"], 1) for k in ("kl", "entropy", "clip_fraction")}
    means["mean_abs_advantage"] = sums["size"] / max(sums["tokens"], 1)
    means["coverage"] = sums["covered"] / max(sum(len(e.steps) for e in episodes), 1)
    means |= {"ratio_error": sums["ratio_error"], "grad_norm": norm.item()}
    return means | {"update_tokens_per_s": sums["read"] / seconds}


class Run:
    """Everything around the loop: policy, optimizer, log, evaluation, checkpoints. `memory`, a
    method's own dictionary of plain values, tensors and containers of them, is saved and restored
    too. Chance is not: every iteration seeds all generators from (seed, iteration)."""

    def __init__(self, args, memory=None):
        self.args, self.memory = args, {} if memory is None else memory
        self.iteration, self.stopping, self.rows = 0, False, []  # rows: of metrics.jsonl
        self.method = Path(sys.modules[type(args).__module__].__file__).stem
        self.envs = make_envs(args.env, args.tasks * args.group_size, args.env_options)
        self.policy = load_policy(args)
        self.weights = {n: w for n, w in self.policy.model.named_parameters() if w.requires_grad}
        self.optimizer = torch.optim.AdamW(self.weights.values(), args.lr, weight_decay=0.0)
        name = f"{self.method}-{args.env}-{args.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
        self.out = Path(args.resume or args.out or HERE / "runs" / name.replace("/", "-"))
        with explain(f"read held-out seeds from {args.eval_seeds}"):
            seeds = Path(args.eval_seeds).read_text()
            tasks = f"{seeds}{getattr(self.envs[0].unwrapped, 'version', '')}"
            self.panel = hashlib.sha256(tasks.encode()).hexdigest()[:12]
            self.held_out = [TRAIN_SEEDS + int(seed) for seed in seeds.split()]
        with explain(f"start a run in {self.out}"):
            if args.resume:
                self.load()
            self.out.mkdir(parents=True, exist_ok=bool(args.resume))
            (self.out / "args.json").write_text(json.dumps(asdict(args), indent=1))

    def save(self):
        """Writes checkpoint.pt, whole or not at all, and the policy as a model folder."""
        state = {k: vars(self)[k] for k in ("method", "iteration", "rows", "weights", "memory")}
        torch.save(state | {"optimizer": self.optimizer.state_dict()}, self.out / "unfinished.pt")
        (self.out / "unfinished.pt").replace(self.out / "checkpoint.pt")
        self.policy.model.save_pretrained(self.out / "model")
        self.policy.tokenizer.save_pretrained(self.out / "model")

    def load(self):
        """Goes on exactly where `save` stood."""
        state = torch.load(self.out / "checkpoint.pt", weights_only=True)
        if state["method"] != self.method:
            raise ValueError(f"it is a run of {state['method']}, not of {self.method}")
        if state["rows"][0]["held_out"] != self.panel:
            raise ValueError("its held-out tasks, or the data of its environment, were others")
        self.policy.model.load_state_dict(state["weights"], strict=False)
        self.optimizer.load_state_dict(state["optimizer"])
        self.memory.update(state["memory"])
        self.iteration, self.rows = state["iteration"], state["rows"]

    def next_tasks(self):
        """The seeds of this iteration's rollouts, each `group_size` times."""
        tasks = np.random.randint(TRAIN_SEEDS, size=self.args.tasks)
        return tasks.repeat(self.args.group_size).tolist()

    def iterations(self):
        """Counts up to args.iterations. Ctrl-C: this one is the last, and leaves a checkpoint."""
        signal.signal(signal.SIGINT, lambda *_: setattr(self, "stopping", True))
        if not self.rows:  # iteration 0: how good is the policy before training?
            self.log([], update(self, [], []))
        bar = tqdm(range(self.iteration + 1, self.args.iterations + 1), self.method)
        for self.iteration in bar:
            transformers.set_seed((self.args.seed * 1_000_003 + self.iteration) % 2**32)
            self.policy.meter = Counter(began=time.perf_counter())
            yield self.iteration
            bar.set_postfix({key: self.rows[-1][key] for key in ("success", "eval_success")})
            if self.stopping and self.rows[-1]["eval_success"] is not None:  # and so a checkpoint
                break
        curve = [row["eval_success"] for row in self.rows if row["eval_success"] is not None]
        bars = "".join("▁▂▃▄▅▆▇█"[int(7.99 * value)] for value in curve)
        print(f"held-out success {curve[0]:.3f} {bars} {curve[-1]:.3f}\nfiles: {self.out}")

    def evaluate(self, *logit_bias):
        """Success on the held-out tasks, with the same chance in every evaluation."""
        transformers.set_seed(0)
        settings = (self.held_out, (), self.args.eval_temperature, *logit_bias)
        return float(np.mean([e.success for e in rollout(self.policy, self.envs, *settings)]))

    def log(self, episodes, metrics, guide=None):
        """Ends an iteration: metrics.jsonl; when due, evaluation (by `guide` too), checkpoint."""
        args, meter, played = self.args, self.policy.meter, [e for e in episodes if e.steps]
        steps = [(e.task, step) for e in played for step in e.steps]
        visits = Counter((task, step.state) for task, step in steps)
        groups = [{e.reward for e in played if e.task == task} for task in {e.task for e in played}]
        row = {"iteration": self.iteration, "held_out": self.panel, "eval_success": None, **metrics}
        row["episodes"] = len(episodes)
        ends = [(e.success, e.reward, len(e.steps), e.truncated) for e in played] or [(0, 0, 0, 0)]
        row |= zip(("success", "return", "length", "truncated"), np.mean(ends, 0).tolist())
        row["success"] *= len(played) / max(len(episodes), 1)  # a crash is no success
        own = [e.steps[-1].info.get("metrics", {}) for e in played]  # an environment's figures,
        for key in dict.fromkeys(key for figures in own for key in figures):  # where it gives them
            row[key] = float(np.mean([figures[key] for figures in own if key in figures]))
        turns = [(visits[task, s.state] == 1, not s.valid) for task, s in steps] or [(0, 0)]
        row |= zip(("singletons", "invalid"), np.mean(turns, 0).tolist())
        row["dead_groups"] = sum(len(rewards) == 1 for rewards in groups) / max(len(groups), 1)
        row |= {k: meter[k] for k in ("policy_tokens", "env_steps", "extra_passes", "failed")}
        row["extra_tokens"] = row["policy_tokens"] - sum(len(e.action_tokens) for e in played)
        row["extra_steps"] = row["env_steps"] - len(steps)
        row["rollout_tokens_per_s"] = meter["rollout_tokens"] / max(meter["rollout_seconds"], 1e-9)
        row["seconds"] = time.perf_counter() - meter["began"]
        row["credit_seconds"] = row["seconds"] - meter["rollout_seconds"] - meter["update_seconds"]
        self.rows.append(row)
        last = self.stopping or self.iteration == args.iterations
        if last or self.iteration % args.eval_every == 0:
            row |= {"eval_guided": self.evaluate(guide)} if guide else {}
            row |= {"eval_success": self.evaluate(), "failed": meter["failed"]}
            self.save()
        (self.out / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in self.rows))
