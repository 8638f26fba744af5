"""How answers end: for templates and tokenizers that nobody wrote, what is trained at an answer's end is what ends a text of the
published folder, by transformers' own stop; answers without an end are refused."""

from __future__ import annotations

import json
import shutil
import tempfile
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from transformers.generation.stopping_criteria import EosTokenCriteria

from tests.helpers.chats import TEMPLATES, chat_model, token_rows
from tests.helpers.data_stages import Bench, loaded_rows, new_bench
from trnflow.tasks.artifact import Input
from trnflow.tasks.errors import ConfigError, ModelError
from trnflow.tasks.model_folder.settings_files import generation_settings
from trnflow.tasks.training.needs import refuse_endless

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
MARKS = ["<s>", "</s>", "<|stop|>", "[/A]", "<end_of_turn>", "<|eot|>", "<pad>"]


class Case(NamedTuple):
    """A tokenizer and a template. special: the marks that the tokenizer calls special; new: added by the recipe."""

    special: list[str]
    new: list[str]
    eos: str
    pad: str | None
    ends: list[str]
    before: str
    last: str | None
    base: list[int]

    @property
    def template(self) -> str:
        """Ends each answer with the text of `ends` that its length chooses, the last one with `last` if that is given."""
        ends = json.dumps(self.ends)
        chosen = f"({ends})[m['content']|length % {len(self.ends)}]"
        chosen = f"({json.dumps(self.last)} if loop.last else {chosen})" if self.last is not None else chosen
        return (
            "{% for m in messages %}" + self.before + "{{ m['role'] }}: {{ m['content'] }}"
            "{% if m['role'] == 'assistant' %}{{ " + chosen + " }}{% else %}{{ '\n' }}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}" + self.before + "assistant: {% endif %}"
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    special = draw(st.lists(st.sampled_from(MARKS[2:]), unique=True, max_size=4))
    new = draw(st.lists(st.sampled_from(MARKS[2:]), unique=True, max_size=3))
    new = [mark for mark in new if mark not in special]
    known = ["<s>", "</s>", *special, *new]
    end = st.tuples(st.sampled_from(known), st.sampled_from(["", "\n", " \n\n", "\t"])).map("".join)
    odd = st.sampled_from(["", "\n", " END", "</s> bye", "<unk>"])
    ends = draw(st.lists(st.one_of(end, end, end, odd), min_size=1, max_size=5))
    return Case(
        special, new, draw(st.sampled_from(["</s>", "<s>", "<unk>", *special])),
        draw(st.sampled_from([None, "</s>", *special])), ends,
        draw(st.sampled_from(["", "<s>", *known, "### "])), draw(st.one_of(st.none(), end)),
        draw(st.lists(st.integers(0, 2), unique=True, max_size=3)),
    )  # fmt: skip


def folder_of(case: Case, folder: Path) -> dict[str, Any]:
    """Write a byte-level tokenizer; return the recipe's `model`."""
    vocabulary = {text: number for number, text in enumerate(["<unk>", "<s>", "</s>", *LETTERS])}
    made = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(mark, normalized=False) for mark in ("<unk>", "<s>", "</s>", *case.special)])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    pad = {"pad_token": case.pad} if case.pad else {}
    roles = {"bos_token": "<s>", "eos_token": case.eos, "unk_token": "<unk>", **pad}
    PreTrainedTokenizerFast(tokenizer_object=made, **roles).save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return {"source": str(folder)}


TALKS = [
    [{"role": role, "content": "w" * (n + number)} for number, role in enumerate(["user", "assistant"] * turns)]
    for n, turns in ((1, 1), (2, 2), (3, 1), (5, 2), (4, 1), (9, 3))
]


def tokens_of(bench: Bench, model: dict[str, Any], template: str, **tokenize: Any) -> Input:
    texts = bench.texts(loaded_rows(bench.root, {"messages": TALKS}), model, task="chat", chat_template=template)
    return bench.tokens(texts, model, **tokenize)


def answers_of(tokens: Input) -> list[tuple[list[int], list[int]]]:
    """(ids before, ids) of each span that is trained on."""
    found = []
    for ids, mask in token_rows(tokens):
        at = 0
        for train, span in groupby(mask):
            size = len(list(span))
            if train:
                found.append((ids[:at], ids[at : at + size]))
            at += size
    return found


@settings(derandomize=True, max_examples=50)
@given(case=cases())
def test_what_ends_answers_in_training_ends_texts_of_the_folder(case: Case) -> None:
    with tempfile.TemporaryDirectory() as root:
        bench = new_bench(Path(root))
        tokens = tokens_of(bench, folder_of(case, Path(root) / "model"), case.template, new_tokens=case.new)
        theirs, answers = PreTrainedTokenizerFast.from_pretrained(tokens.path / "tokenizer"), answers_of(tokens)
    wanted = []
    for _, ids in answers:
        while len(ids) > 1 and not theirs.decode(ids[-1:]).strip():
            ids = ids[:-1]
        # a special token, as transformers reads the published tokenizer; an unknown word is none, unless it is eos, too
        is_end = theirs.added_tokens_decoder.get(ids[-1]) and theirs.added_tokens_decoder[ids[-1]].special
        is_word = ids[-1] == theirs.unk_token_id != theirs.eos_token_id
        wanted.append(ids[-1] if is_end and not is_word else None)
    ended = {number for number in wanted if number is not None}
    assert {end["id"]: end["answers"] for end in tokens.meta["ends"]} == {
        number: wanted.count(number) for number in ended
    }
    assert tokens.meta.get("unended", {}).get("train", 0) == wanted.count(None)
    event(f"refused {None in wanted or len(ended) > 4}")
    if None in wanted or len(ended) > 4:
        with pytest.raises(
            ConfigError, match=r"format.chat_template: (no special token ends|answers of train end with 5)"
        ):
            refuse_endless(tokens.meta)
        return
    refuse_endless(tokens.meta)
    ids = [end["id"] for end in tokens.meta["ends"]]
    published = generation_settings(
        {}, {"eos_token_id": case.base} if case.base else None, ids, [tokens.meta["pad_id"]]
    )
    stops = published["eos_token_id"] if isinstance(published["eos_token_id"], list) else [published["eos_token_id"]]
    assert {*stops[: len(ids)]} == ended and stops[len(ids) :] == [own for own in case.base if own not in ended]
    if case.pad and theirs.pad_token_id not in stops:
        assert published["pad_token_id"] == theirs.pad_token_id
    # nothing that generates an answer stops before its end, or goes on after it
    criteria = EosTokenCriteria(eos_token_id=sorted(ended))
    for (before, answer), end in zip(answers, wanted, strict=True):
        stopped = [
            at for at in range(1, len(answer) + 1) if criteria(torch.tensor([[*before, *answer[:at]]]), None).item()
        ]
        assert (
            answer[stopped[0] - 1] == end and not theirs.decode(answer[stopped[0] :], skip_special_tokens=True).strip()
        )


@pytest.mark.parametrize("name", sorted(path.stem for path in TEMPLATES.glob("*.jinja")))
def test_published_templates_end_answers(name: str, bench: Bench) -> None:
    model, theirs = chat_model(bench.root / "model", (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"))
    tokens = tokens_of(bench, model, "tokenizer")
    (end,) = tokens.meta["ends"]
    assert end["text"] in ("<|im_end|>", "<|eot_id|>", "<｜end▁of▁sentence｜>")
    assert end["id"] == theirs.convert_tokens_to_ids(end["text"]) and end["answers"] == len(answers_of(tokens))


PLAIN = Case(["<|stop|>"], [], "</s>", None, ["<|stop|>"], "", None, [])
BAD = {
    "nothing": (PLAIN._replace(ends=[""]), "no special token ends the answers"),
    "a newline": (PLAIN._replace(ends=["\n"]), "no special token ends the answers"),
    "words": (PLAIN._replace(ends=[" END"]), r"its answer ends in 'w+ END'"),
    "a token that the tokenizer lacks": (PLAIN._replace(ends=["<|im_end|>\n"]), r"<\|im_end\|>.n'\).*|<\|im_end\|>"),
    "most answers": (PLAIN._replace(ends=["<|stop|>", "<|stop|>", ""]), "no special token ends the answers"),
    "five ends": (
        PLAIN._replace(special=MARKS[2:6], ends=["</s>", *MARKS[2:6]]),
        r"end with 5 special tokens \(.*<\|stop\|>.*\), and at most 4",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_template_without_an_end_is_refused(name: str, bench: Bench) -> None:
    case, message = BAD[name]
    tokens = tokens_of(bench, folder_of(case, bench.root / "model"), case.template)
    with pytest.raises(ConfigError, match=message) as refused:
        refuse_endless(tokens.meta)
    assert "format.chat_template" in refused.value.message and refused.value.fix
    if "unended" in tokens.meta:
        assert "split train row" in refused.value.message and any(
            "learn their end" in text for text in bench.warnings()
        )
        refuse_endless(
            tokens_of(
                new_bench(bench.workdir().path), {"source": str(bench.root / "model")}, case.template, add_eos=False
            ).meta
        )


def test_a_block_without_the_end_is_refused(bench: Bench) -> None:
    """The token stands in the text, but nothing teaches it."""
    template = (
        "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "<|stop|>{% else %}{{ m.content }}\n{% endif %}{% endfor %}"
    )
    tokens = tokens_of(bench, folder_of(PLAIN, bench.root / "model"), template)
    with pytest.raises(ConfigError, match="no special token ends the answers") as refused:
        refuse_endless(tokens.meta)
    assert "{% generation %}" in refused.value.fix


@pytest.mark.parametrize(
    ("task", "template"), [("instruction", "tokenizer"), ("chat", "sections"), ("chat", "{{ eos_token }}")]
)
def test_the_only_special_token_of_gpt2_ends_answers(task: str, template: str, bench: Bench, shared: Path) -> None:
    """It is bos, eos, unk and pad in one, as in the tokenizers of GPT-NeoX, OPT and SmolLM."""
    model = {"source": str(bench.root / "model")}
    shutil.copytree(shared / "cases/c25_boundary/tokenizer", model["source"])
    (bench.root / "model/config.json").write_text('{"model_type": "gpt2"}')
    theirs = PreTrainedTokenizerFast.from_pretrained(model["source"])
    assert theirs.unk_token_id == theirs.eos_token_id == theirs.bos_token_id == theirs.pad_token_id
    if template not in ("tokenizer", "sections"):
        template = f"{{% for m in messages %}}{{{{ m.content }}}}{template}{{% endfor %}}"
    rows = loaded_rows(bench.root, {"instruction": ["a"], "response": ["b"], "messages": TALKS[:1]})
    tokens = bench.tokens(bench.texts(rows, model, task=task, chat_template=template), model)
    refuse_endless(tokens.meta)
    assert [(end["id"], end["answers"]) for end in tokens.meta["ends"]] == [(theirs.eos_token_id, 1)]


def test_padding_that_ends_turns_is_learnt_and_published(bench: Bench) -> None:
    case = PLAIN._replace(eos="<|stop|>", pad="<|stop|>")
    tokens = tokens_of(bench, folder_of(case, bench.root / "model"), case.template)
    (end,) = tokens.meta["ends"]
    assert (end["text"], end["answers"]) == ("<|stop|>", len(answers_of(tokens)))
    published = generation_settings({}, None, [end["id"]], [tokens.meta["pad_id"]])
    assert published == {"do_sample": False, "eos_token_id": end["id"], "pad_token_id": end["id"]}
    assert generation_settings({}, None, [end["id"]], [end["id"], 9])["pad_token_id"] == 9


def test_answers_cut_at_max_length_are_counted(bench: Bench) -> None:
    model = folder_of(PLAIN, bench.root / "model")
    whole = tokens_of(bench, model, PLAIN.template)
    longest = max(len(ids) for ids, _ in token_rows(whole))
    cut = tokens_of(new_bench(bench.workdir().path), model, PLAIN.template, max_length=longest - 1)
    assert cut.meta["cut_answers"] == {"train": 1} and cut.meta["metrics"]["answers_cut"] == 1
    assert cut.meta["ends"][0]["answers"] == whole.meta["ends"][0]["answers"] - 1
    for other in ("split", "drop"):
        kept = tokens_of(new_bench(bench.workdir().path), model, PLAIN.template, max_length=longest - 1, overlong=other)
        assert "cut_answers" not in kept.meta and "unended" not in kept.meta
    assert "cut_answers" not in whole.meta and not any("their end" in text for text in bench.warnings())


@pytest.mark.parametrize("task", ["preference", "unpaired_preference"])
def test_both_answers_of_a_pair_end(task: str, bench: Bench) -> None:
    """Chosen and rejected, also where one is cut; a conversation before them ends its turns, which nothing teaches."""
    case = PLAIN._replace(ends=["<|stop|>\n"])
    said = [[*TALKS[1][:3], {"role": "assistant", "content": "w" * size}] for size in (3, 30)]
    columns = {"chosen": [json.dumps(said[0])] * 2, "rejected": [json.dumps(said[1])] * 2}
    model = folder_of(case, bench.root / "model")
    texts = bench.texts(
        loaded_rows(bench.root, columns, nested=[*columns]), model, task=task, chat_template=case.template
    )
    tokens = bench.tokens(texts, model)
    assert [(end["text"], end["answers"]) for end in tokens.meta["ends"]] == [("<|stop|>", 4)]
    cut = bench.tokens(texts, model, max_length=tokens.meta["longest"] // 2)
    assert cut.meta["ends"][0]["answers"] == 2 and cut.meta["cut_answers"] == {"train": 2}
    by_sections = bench.texts(
        loaded_rows(bench.root / "again", columns, nested=[*columns]), model, task=task, chat_template="sections"
    )
    assert [(end["text"], end["answers"]) for end in bench.tokens(by_sections, model).meta["ends"]] == [("</s>", 4)]


def test_a_tokenizer_without_eos_is_refused_where_it_has_to_end_answers(bench: Bench) -> None:
    """Not where a chat template ends them with another token, and not for texts, which are no answers."""
    model = folder_of(PLAIN._replace(pad="</s>"), bench.root / "model")
    config = bench.root / "model/tokenizer_config.json"
    known = {name: value for name, value in json.loads(config.read_text()).items() if name != "eos_token"}
    config.write_text(json.dumps(known))
    (bench.root / "model/special_tokens_map.json").unlink(missing_ok=True)
    rows = loaded_rows(bench.root, {"instruction": ["a"], "response": ["b"], "text": ["c"], "messages": TALKS[:1]})
    by_task = {
        task: bench.tokens(bench.texts(rows, model, task=task, chat_template=template), model)
        for task, template in (("instruction", "tokenizer"), ("text", "tokenizer"), ("chat", PLAIN.template))
    }
    sections = bench.tokens(bench.texts(rows, model, task="chat", chat_template="sections"), model)
    for tokens in (by_task["instruction"], sections):
        assert tokens.meta["ends"] == [] and tokens.meta["unended"] == {"train": 1}
        with pytest.raises(ModelError, match=r"the tokenizer has no eos token, .*split train row 1") as refused:
            refuse_endless(tokens.meta)
        assert "tokenizer_config.json" in refused.value.fix
    for task in ("text", "chat"):
        refuse_endless(by_task[task].meta)
    assert by_task["chat"].meta["ends"][0]["text"] == "<|stop|>"
