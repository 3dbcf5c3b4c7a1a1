"""Compares log-likelihoods that lm-evaluation-harness gets from `/v1/completions` with those of
`ruvllm eval perplexity`, in windows of a text and in questions with several answers.

Environment: that of checks.py; CLIENTS_PROGRAM, the program `ruvllm`; CLIENTS_MODEL_FILE, the
model of the server; CLIENTS_KV, its KV-cache type; CLIENTS_TEXT, a text of some thousand tokens.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import checks
from checks import KEY, MODEL, URL, expect

os.environ["OPENAI_API_KEY"] = KEY
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import lm_eval  # noqa: E402 - reads the environment
import lm_eval.utils  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

PROGRAM = os.environ["CLIENTS_PROGRAM"]
MODEL_FILE = os.environ["CLIENTS_MODEL_FILE"]
KV = os.environ["CLIENTS_KV"]
TEXT = Path(os.environ["CLIENTS_TEXT"]).read_text(encoding="utf-8")

# Log-probabilities are f32 of the same logits on both sides; sums differ by rounding alone.
RELATIVE = 1e-4
WINDOWS = 4
QUESTIONS = [
    {"question": "Question: What is a glacier made of?\nAnswer:", "answers": [" ice", " sand", " glass"]},
    {"question": "Question: Which animal barks?\nAnswer:", "answers": [" a dog", " a fish", " a tree"]},
    {"question": "Question: What colour is the sky on a clear day?\nAnswer:", "answers": [" blue", " green"]},
    {"question": "Question: How many days has a week?\nAnswer:", "answers": [" seven", " two", " ninety"]},
]


class Tokenizer(lm_eval.utils.RemoteTokenizer):
    """The harness's tokenizer over HTTP, which speaks vLLM's form of `/tokenize`, in the server's."""

    def _validate_server(self):
        pass

    @property
    def tokenizer_info(self):
        return {}

    # The prefix of texts without context; no task here has one.
    eos_token_id = checks.END_TOKENS[0]

    def encode(self, text):
        return checks.token_ids(text)

    def decode(self, tokens):
        return decode(tokens)


lm_eval.utils.RemoteTokenizer = Tokenizer


def evaluate(text, context, limit=None):
    """Sum of log-likelihoods and number of scored tokens, by the program."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        words = [PROGRAM, "eval", "perplexity", "--json", "--quiet", "--file", file.name]
        words += ["--model", MODEL_FILE, "--kv", KV, "--context", str(context)]
        words += ["--limit", str(limit or context)]
        done = subprocess.run(words, capture_output=True, text=True)
    expect(done.returncode == 0, done.stderr)
    found = json.loads(done.stdout)
    return -found["nll"] * found["tokens"], found["tokens"]


def texts_of(tokens, size):
    """Texts of the windows of `size` tokens, if they are encoded to the same tokens alone."""
    windows = [tokens[at * size:(at + 1) * size] for at in range(WINDOWS)]
    pieces = []
    for window in windows:
        first, rest = (decode(part) for part in (window[:1], window[1:]))
        whole = checks.token_ids(first + rest)
        if whole != window or checks.token_ids(first) != window[:1] or first != first.rstrip():
            return None
        pieces.append({"first": first, "rest": rest})
    return pieces


def decode(tokens):
    return checks.raw("/detokenize", {"model": MODEL, "tokens": tokens})["content"]


def windows():
    """Windows of the text, their size, and the tokens that they cover."""
    tokens = checks.token_ids(TEXT)
    for size in range(256, 16, -1):
        if len(tokens) >= size * WINDOWS and (pieces := texts_of(tokens, size)):
            return pieces, size
    raise AssertionError("no window size at which the text is cut between words")


def task(folder, name, docs, **settings):
    """Writes a task of lm-evaluation-harness over documents of its own."""
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(doc) + "\n" for doc in docs), encoding="utf-8")
    config = {
        "task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test", "target_delimiter": "", **settings,
    }
    # JSON is YAML.
    (folder / f"{name}.yaml").write_text(json.dumps(config), encoding="utf-8")


def write_tasks(folder, pieces):
    task(folder, "windows", pieces, output_type="loglikelihood", doc_to_text="{{first}}",
         doc_to_target="{{rest}}", metric_list=[{"metric": "acc"}])
    task(folder, "questions", QUESTIONS, output_type="multiple_choice", doc_to_text="{{question}}",
         doc_to_choice="{{answers}}", doc_to_target=0, metric_list=[{"metric": "acc"}])


def run_harness(folder, batch):
    """Samples and results of both tasks."""
    model = {
        "model": MODEL, "base_url": URL + "/v1/completions", "tokenizer_backend": "remote",
        "auth_token": KEY, "num_concurrent": 2, "max_retries": 1, "max_length": 2048,
    }
    return lm_eval.simple_evaluate(
        model="local-completions", model_args=model, tasks=["windows", "questions"], batch_size=batch,
        task_manager=TaskManager(include_path=str(folder), include_defaults=False), log_samples=True,
        bootstrap_iters=0, verbosity="ERROR",
    )


def likelihoods(samples):
    """Log-likelihoods of the requests of each document, in the order of documents."""
    ordered = sorted(samples, key=lambda sample: sample["doc_id"])
    return [[float(answer[0][0]) for answer in sample["resps"]] for sample in ordered]


def compare(what, found, expected, tokens):
    """Fails unless two sums of log-probabilities agree."""
    difference = abs(found - expected) / max(abs(expected), 1e-3)
    print(f"  {what}: harness {found:.5f}, program {expected:.5f}, {tokens} tokens", file=sys.stderr)
    expect(difference < RELATIVE, (what, found, expected))


def check_windows(result, pieces, size):
    """Every window, and all of them in one run of the program."""
    sums = [values[0] for values in likelihoods(result["samples"]["windows"])]
    for at, (piece, found) in enumerate(zip(pieces, sums)):
        expected, tokens = evaluate(piece["first"] + piece["rest"], size)
        compare(f"window {at + 1}", found, expected, tokens)
    expected, tokens = evaluate(TEXT, size, size * WINDOWS)
    compare("text", sum(sums), expected, tokens)
    perplexity = math.exp(-sum(sums) / tokens)
    expect(abs(perplexity / math.exp(-expected / tokens) - 1) < RELATIVE, perplexity)
    return f"perplexity {perplexity:.4f} of {tokens} tokens in {WINDOWS} windows"


def check_questions(result):
    """Every answer, as the difference of question with answer and question alone."""
    for doc, found in zip(QUESTIONS, likelihoods(result["samples"]["questions"])):
        question = checks.token_ids(doc["question"])
        alone, _ = evaluate(doc["question"], len(question))
        for answer, value in zip(doc["answers"], found):
            whole = checks.token_ids(doc["question"] + answer)
            expect(whole[:len(question)] == question, "an answer that joins the question's last token")
            both, tokens = evaluate(doc["question"] + answer, len(whole))
            compare(repr(answer), value, both - alone, tokens)
    return f"{sum(len(doc['answers']) for doc in QUESTIONS)} answers"


def main():
    pieces, size = windows()
    with tempfile.TemporaryDirectory() as folder:
        write_tasks(Path(folder), pieces)
        for batch in (1, 4):
            result = run_harness(Path(folder), batch)
            print(f"batch {batch}: {check_windows(result, pieces, size)}; {check_questions(result)}")


main()
