#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes choices.jsonl and choices.bin, difficult multiple choice questions, and choices_reference.json, what
lm-evaluation-harness' task hellaswag (its own code) and an independent version of llm.c's rows make of them.

usage: make_choices_reference.py DATA tests/reference

DATA is the folder with gpt2.tiktoken. choices.bin holds the questions in bytes as tokens, so that any model reads it.
"""

import base64
import json
import math
import pathlib
import struct
import sys

import lm_eval.tasks.hellaswag
import numpy as np
import tiktoken
import torch
import xxhash
import yaml
from datasets import Dataset, DatasetDict
from lm_eval.api.metrics import mean, mean_stderr
from lm_eval.api.model import CacheHook
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks.hellaswag import utils as hellaswag

PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
END_OF_TEXT = "<|endoftext|>"
# A mark that joins the control character after it, though Python takes that for white space at the context's end.
SMALL_MERGES = [b"th", b"the", b" the", b" a", b"!\x1c", b"  ", b"in", b"ing", b"\xce\xa3"]
MAX_LENGTH = 64


def question(activity_label, ctx_a, ctx_b, endings, label):
    return {"ind": int(label), "activity_label": activity_label, "ctx_a": ctx_a, "ctx_b": ctx_b,
            "ctx": f"{ctx_a} {ctx_b}".strip(), "endings": endings, "label": label, "split": "val"}


QUESTIONS = [
    question("Roof shingle removal", "A man is sitting on a roof.", "he",
             ["is using wrap to wrap a pair of skis.", "is ripping level tiles off.", "is holding a rubik's cube.",
              "starts pulling up roofing on a roof."], 3),
    question("Personal Care and Style", "[header] How to dye hair [title] Choose a colour [step] Look at it.", "",
             ["[substeps] Try blue. [title] Rinse", " [title] Wash it", "Do [not] dye", "[step]"], "0"),
    question("Two  spaces", "  Four    spaces,   three,  two. ", "THE LAST ONE IS   SHOUTED", ["a  b", "   ", "", "x"], 1),
    question("Letters", "One letter:", "ßTRASSE", ["a", "B", "ß", "Σ"], "2"),
    question("Griechisch", "Ο", "ΟΔΥΣΣΕΥΣ ΣΑΣ. Σ AΣ'Σ AΣ' ΑΣ\u0301Α", ["ΣΑΣ", "σας", "ς", "Σ\u0301"], 3),
    question("Türkçe", "İstanbul", "İSTANBUL IĞDIR", ["ı", "i\u0307", "İ", "I"], 0),
    question("Ligatures", "Typesetting:", "ﬃ ﬁ ĳ ǆ ǅ ŉ ΐ ᾳ", ["ﬀ", "Ǆ", "ǅ", "ᾼ"], 1),
    question("Georgian", "ქართული", "ქართული ᲥᲐᲠᲗᲣᲚᲘ", ["ა", "Ა", "Ⴀ", "ⴀ"], 2),
    question("Emoji", "A family \U0001f468\u200d\U0001f469\u200d\U0001f467", "👍🏽 THUMBS", ["👨‍👩‍👧", "\U0001f600" * 3, "e\u0301é", "日本語"], 3),
    question("White space", "\u00a0\u2003Odd\u3000spaces\u2009", "\x1cIS\x1f IT\x85", ["\x1f a \x1c", "\u00a0b\u00a0", "\u200bc\u200b", "\ufeffd"], 0),
    question("Ends with spaces", "Ends [x]", " [y] ", ["after", "[z] later", "now\n", "\tthen"], 1),
    question("Ends with controls", "Hi!\x1c[x]", "", ["end", " the end", "!", "\x1c"], 1),
    question("Lines", "First [a\nb] second [c]\r\n[d", "]E\n[F] G]", ["[g\nh]", "i [j] k ] l [m", "[[n]]", "]o["], 2),
    question("Brackets", "[[[a]b]c [] [ ] x", "[", ["[", "]", "[]", "[][]x"], 3),
    question("Titles", "a [title]b [title] [title]c", "D [TITLE] e [title]", [" [title]", "[title]", "  [title]  ", "x [title] y"], 0),
    question("Quotes", "It's we'll've \"they\" don't", "\"QUOTED\"", ["'s", "'S", "n't", "' s"], "1"),
    question("Numbers", "In 1999 ², ½, ٣ and Ⅷ", "12 MONKEYS", ["1", "٤", "iv", "ⅳ"], 2),
    question("Long", "word " * 40, "THE END " * 10, ["short", "very " * 12 + "long", "x" * 40, "."], 0),
    question("", "", "", ["nothing before", "still nothing", "x", "y"], 3),
    question("{{ braces }}", "A {% template %} of {{query}}", "{# COMMENT #}", ["{{x}}", "{", "}", "%"], 2),
    question("Three", "Only three", "endings", ["one", "two", "three"], 2),
    question("Two", "Only two", "endings", ["yes", "no"], 1),
    question("Code", "for (int i = 0; i < n; ++i) {", "\\N ESCAPES \\U0041 \t", ["\\", "\"", "/", "\b\f\x7f"], 1),
    question("Thai", "ภาษาไทย", "ไม่มี", ["ก", "ก็", "กำ", "เก"], 0),
    question("Hebrew", "עברית", "אבג", ["א", "אָ", "ב", "ג"], 1),
    question("Deseret", "𐐨", "𐐨𐐀 𝐀 Ⓐ", ["𐐀", "𐐨", "ⓐ", "Ⓐ"], 2),
]
# Lines without all of HellaSwag's keys: the context is "ctx".
PLAIN = [
    {"ctx": "In my palm is a clear stone, and inside it is a small ivory", "endings": ["statue"], "label": 0},
    {"ctx": "", "endings": ["From nothing.", " spaces before"], "label": "1"},
    {"ctx": " \n ", "endings": ["only space before"], "label": 0},
    {"ctx": "ends with spaces  ", "endings": ["a", " b"], "label": 0, "activity_label": "not used"},
    {"ctx": "[all of it goes]", "endings": ["left alone", "[too]"], "label": 0},
    {"ctx": "the [title] is", "endings": ["a [title] b", "[c] d"], "label": 1, "ctx_a": "x", "ctx_b": "y"},
]
DOCUMENTS = QUESTIONS + PLAIN


class Task(ConfigurableTask):
    """The task hellaswag with other documents."""

    def __init__(self, documents, is_processed):
        self.documents = documents
        folder = pathlib.Path(lm_eval.tasks.hellaswag.__path__[0])

        class Loader(yaml.SafeLoader):
            pass

        Loader.add_constructor("!function", lambda loader, node: hellaswag.process_docs)
        config = yaml.load((folder / "hellaswag.yaml").read_text(), Loader)
        config["task"] = "hellaswag"
        config.pop("tag")
        if is_processed:
            del config["process_docs"]
        super().__init__(config=config)

    def download(self, *_, **__):
        documents = Dataset.from_list([{**d, "label": str(d["label"])} for d in self.documents])
        self.dataset = DatasetDict({"train": documents, "validation": documents})


class Recorder(HFLM):
    """Encodes and cuts as the harness does, and records the rows instead of computing."""

    def __init__(self, encode, end_of_text, vocab):
        self.encode, self.end_of_text, self.vocab = encode, end_of_text, vocab
        self.rows = []

    backend = "causal"
    logits_cache = False
    enable_thinking = False
    cache_hook = CacheHook(None)
    batch_size = 1
    max_length = MAX_LENGTH
    device = torch.device("cpu")
    rank = 0
    softmax_dtype = None
    eot_token_id = property(lambda self: self.end_of_text)
    prefix_token_id = property(lambda self: self.end_of_text)

    def tok_encode(self, string, *_, **__):
        return self.encode(string)

    def _model_call(self, inps, *_, **__):
        self.rows.append(inps[0].tolist())
        return torch.zeros(1, inps.shape[1], self.vocab)

    def cut_row(self, context, continuation):
        self.rows = []
        super()._loglikelihood_tokens([(("", ""), context, continuation)], disable_tqdm=True)
        return self.rows[0] + continuation[-1:]

    def tokens(self, pairs):
        """Context and continuation in tokens, as `loglikelihood` makes them."""
        recorded = []
        self._loglikelihood_tokens = lambda requests, **__: recorded.extend(requests) or [None] * len(requests)
        self.loglikelihood([type("Instance", (), {"args": pair}) for pair in pairs], disable_tqdm=True)
        del self._loglikelihood_tokens
        return [(context, continuation) for _, context, continuation in recorded]


def harness_documents():
    """(task, its document) for each question. The harness has no rule for lines without HellaSwag's keys."""
    task = Task(QUESTIONS, False)
    plain = Task([{"query": hellaswag.preprocess(d["ctx"]), "choices": [hellaswag.preprocess(e) for e in d["endings"]],
                   "label": d["label"]} for d in PLAIN], True)
    return [(t, doc) for t in (task, plain) for doc in t.validation_docs()]


def small_ranks():
    return {token: rank for rank, token in enumerate([bytes([b]) for b in range(256)] + SMALL_MERGES)}


def gpt2_ranks(data):
    lines = (data / "gpt2.tiktoken").read_bytes().split(b"\n")
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}


def recorder(ranks):
    encoding = tiktoken.Encoding("ranks", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    return Recorder(encoding.encode_ordinary, len(ranks), len(ranks) + 1)


def fake_losses(number, count):
    """Made up, with ties and a perfect ending."""
    losses = [round(1 + (number * 7 + ending * (3 + number % 5)) % 11 * 0.25, 2) for ending in range(count)]
    return losses, [(number + ending) % 3 == 0 for ending in range(count)]


def llmc_tokens(document):
    """Context and endings as llm.c's script encodes them, in bytes; 256 is <|endoftext|>."""
    return list(document["ctx"].encode()) or [256], [list((" " + ending).encode()) for ending in document["endings"]]


def llmc_file(documents):
    """llm.c's evaluation file."""
    examples = []
    for number, document in enumerate(documents):
        words = [65535, 0, number, int(document["label"]), len(document["endings"])]
        for tokens in [list(document["ctx"].encode()), *llmc_tokens(document)[1]]:
            words += [len(tokens), *tokens]
        words[1] = 2 * len(words)
        examples.append(struct.pack(f"<{len(words)}H", *words))
    header = [20240522, 1, len(examples), max(map(len, examples))] + [0] * 252
    return struct.pack("<256i", *header) + b"".join(examples)


def digest(strings):
    return xxhash.xxh3_128("\n".join(strings).encode()).hexdigest()


def text_digests():
    points = [chr(c) for c in [*range(0x20000), *range(0xE0000, 0xE0200)] if not 0xD800 <= c < 0xE000]
    return {"first": digest(c.capitalize() for c in points),
            "later": digest(("x" + c).capitalize() for c in points),
            "sigma": digest(("aΣ" + c + " " + c + "Σ a" + c + "Σ aΣ" + c + "a").capitalize() for c in points),
            "strip": digest((c + "a" + c).strip() for c in points)}


def rates(values):
    return {"mean": mean(values), "error": mean_stderr(values)}


def main(data, folder):
    encoders = {"small": recorder(small_ranks()), "gpt2": recorder(gpt2_ranks(data))}
    byte_recorder = Recorder(lambda text: list(text.encode()), 256, 257)
    examples = []
    for number, ((task, doc), document) in enumerate(zip(harness_documents(), DOCUMENTS, strict=True)):
        context = task.fewshot_context(doc, num_fewshot=0)
        requests = task.construct_requests(doc, context, metadata=("hellaswag", number, 1))
        pairs = [request.args for request in requests]
        losses, greedy = fake_losses(number, len(pairs))
        with np.errstate(divide="ignore"):
            result = task.process_results(doc, [(-loss, is_greedy) for loss, is_greedy in zip(losses, greedy)])
        llmc_lengths = [len(tokens) for tokens in llmc_tokens(document)[1]]
        label = int(document["label"])
        entry = {
            "context": context, "continuations": [continuation for _, continuation in pairs],
            "code_points": [len(choice) for choice in task.doc_to_choice(doc)],
            "losses": losses, "greedy": greedy, "label": label,
            "acc": int(result["acc"]), "acc_norm": int(result["acc_norm"]),
            "llmc_acc_norm": int(np.argmin(np.array(losses) / llmc_lengths) == label),
        }
        for name, encoder in encoders.items():
            tokens = encoder.tokens(pairs)
            assert len({tuple(c) for c, _ in tokens}) == 1, "the endings share their context"
            entry[name] = {"context": tokens[0][0], "endings": [ending for _, ending in tokens]}
        # The harness refuses contexts without tokens and endings that are longer than the model's context.
        byte_tokens = byte_recorder.tokens(pairs)
        entry["rows"] = [bytes(byte_recorder.cut_row(c, e)).decode("latin-1")
                         if c and c != [256] and len(c) + len(e) > MAX_LENGTH + 1 and len(e) <= MAX_LENGTH else ""
                         for c, e in byte_tokens]
        examples.append(entry)
    lengths = [len(llmc_tokens(d)[1][int(d["label"])]) for d in DOCUMENTS]
    right = [entry["losses"][entry["label"]] for entry in examples]
    reference = {
        "max_length": MAX_LENGTH,
        "small_merges": [base64.b64encode(token).decode() for token in SMALL_MERGES],
        "python": text_digests(),
        "summary": {**{key: rates([entry[key] for entry in examples]) for key in ("acc", "acc_norm", "llmc_acc_norm")},
                    "greedy": rates([int(entry["greedy"][entry["label"]]) for entry in examples]),
                    "right_loss": math.fsum(right) / len(right), "right_token_loss": math.fsum(right) / sum(lengths)},
        "examples": examples,
    }
    lines = [json.dumps(document, ensure_ascii=number % 2 == 0) for number, document in enumerate(DOCUMENTS)]
    (folder / "choices.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
    (folder / "choices.bin").write_bytes(llmc_file(DOCUMENTS))
    text = ",\n".join(json.dumps(entry) for entry in reference.pop("examples"))
    text = json.dumps(reference)[:-1] + ', "examples": [\n' + text + "\n]}\n"
    (folder / "choices_reference.json").write_text(text)


main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
