"""The script on indirect objects, on a small random GPT-2 with the names in its vocabulary: its
table agrees with hooked forward passes."""

import runpy
from pathlib import Path

import pandas as pd
import pytest
import torch
from checkpoints import END, make_checkpoint
from hooked_runs import edit_at, read_all
from huggingface_hub import constants
from inside import forward
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Tokenizer

SCRIPT = Path(__file__).parents[2] / "analyses" / "ioi.py"
SHAPE = {"n_layer": 3, "n_head": 4, "n_embd": 32, "n_positions": 512}
NAMES = ("Mary", "John", "Tom", "James", "Dan", "Sid", "Martin", "Amy")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Every name is one token, as in GPT-2."""
    folder = make_checkpoint(
        tmp_path_factory.mktemp("ioi") / "named", vocab_size=400, seed=3, **SHAPE
    )
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator([" " + " ".join(NAMES)] * 9, trainer)
    GPT2Tokenizer(
        tokenizer_object=bpe, bos_token=END, eos_token=END, unk_token=END
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def ran(checkpoint, tmp_path, monkeypatch, capsys):
    """The variables of the script after it ran, and its output."""
    monkeypatch.setenv("PROBE_MODEL", str(checkpoint))
    monkeypatch.setenv("PROBE_OUT", str(tmp_path))
    return runpy.run_path(str(SCRIPT), run_name="__main__"), capsys.readouterr().out, tmp_path


def test_its_table_agrees_with_hooked_forward_passes_and_lists_the_published_values(ran):
    script, printed, out = ran
    table = pd.read_csv(out / "ioi.csv")
    assert len(table) == 17 and table["agrees"].dtype == bool and not table["agrees"].all()
    assert (
        all(quantity in printed for quantity in table["quantity"])
        and "L8H6 to the query of L9H9" in printed
    )
    model, weights, read = script["model"], script["weights"], script["ids"]
    logits = torch.stack([trace.logits[-1] for trace in script["traces"]])
    answer, giver = script["answers"].T
    rows = torch.arange(8)
    difference = logits[rows, answer] - logits[rows, giver]
    assert float(table["measured"][0]) == pytest.approx(float(difference.mean()), abs=1e-3)
    assert [float(value) for value in table["measured"][1:9]] == pytest.approx(
        difference.tolist(), abs=1e-3
    )
    layer, head, differences = 1, 2, []
    for ids, correct, wrong in zip(read, answer, giver, strict=True):
        edit = (layer, "z", edit_at((len(ids) - 1, head), weights.blocks[layer].b_v[head]))
        resid = read_all(model, ids, ["resid_post"], [edit])["resid_post"][-1, -1]
        final = forward.unembed(weights, resid)
        differences.append(float(final[correct] - final[wrong]))
    assert script["without"]["L1H2"] == pytest.approx(sum(differences) / 8, abs=1e-4)


def test_the_parts_of_the_stream_add_up_to_the_difference(ran):
    """The whole stream along the directions equals the difference except for the norm's bias; the
    heads are part of it."""
    script, *_ = ran
    weights, directions, bias = (
        script["weights"],
        script["directions"],
        script["weights"].raw["ln_f.bias"],
    )
    final = torch.stack([trace.resid_post[-1, -1] for trace in script["traces"]])
    whole = (final * directions).sum(-1) + script["toward"] @ bias
    torch.testing.assert_close(whole, script["difference"], rtol=0, atol=1e-4)
    attention_writes = torch.stack([trace.attn_out[:, -1] for trace in script["traces"]]).sum(1)
    constant = sum(
        torch.einsum("he,hed->d", block.b_v, block.w_o) + block.b_o for block in weights.blocks
    )
    expected = ((attention_writes - constant) * directions).sum(-1).mean()
    assert script["ranked"].sum() == pytest.approx(float(expected), abs=1e-4)


MEASURING = "Cannot measure indirect objects in "


@pytest.mark.parametrize(
    ("model", "start"),
    [
        ("gpt2", "Cannot load gpt2: it is not in the local cache, and HF_HUB_OFFLINE forbids asking"),
        ("tiny-senses", f"{MEASURING}tiny-senses: its tokenizer cuts ' Mary' into 4 tokens, expected "),
        ("tiny-senses-bidirectional", f"{MEASURING}tiny-senses-bidirectional: it is a BERT, and the "),
    ],
)  # fmt: skip
def test_an_unusable_model_ends_in_a_message_of_one_line(
    model, start, tmp_path, monkeypatch, capsys
):
    for setting, value in {"HF_HUB_OFFLINE": True, "HF_HUB_CACHE": str(tmp_path)}.items():
        monkeypatch.setattr(constants, setting, value)
    monkeypatch.setenv("PROBE_MODEL", model)
    monkeypatch.setenv("PROBE_OUT", str(tmp_path / "out"))
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    printed = capsys.readouterr()
    assert stop.value.code == 2 and printed.out == "" and not (tmp_path / "out").exists()
    assert printed.err.startswith(start) and printed.err.count("\n") == 1
