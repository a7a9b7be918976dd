import json
import shutil
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

from gc25d.errors import UserError
from gc25d.prep.encoders import umt5
from gc25d.prep.text import build_table, encoder_for

WORDS = {"<pad>": 0, "</s>": 1, "<unk>": 2, "walk": 3, "on": 4, "stop": 5}


def save_tokenizer(path, words):
    """A tokenizer of whole words that closes with 1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tokenizers import Tokenizer, models, pre_tokenizers, processors
        from transformers import PreTrainedTokenizerFast
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    ).save_pretrained(path)


def save_model(path):
    """A randomly initialised encoder of width 32."""
    from transformers import UMT5Config, UMT5EncoderModel

    torch.manual_seed(0)
    config = UMT5Config(
        vocab_size=16, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, is_decoder=False
    )
    UMT5EncoderModel(config).save_pretrained(path)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("umt5")
    save_tokenizer(path, WORDS)
    save_model(path)
    return path


@pytest.fixture
def damaged(checkpoint, tmp_path):
    """A copy to damage."""
    return shutil.copytree(checkpoint, tmp_path / "copy")


def reference(checkpoint, ids):
    """The library's own states of one prompt, without padding."""
    from transformers import UMT5EncoderModel

    model = UMT5EncoderModel.from_pretrained(checkpoint, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        return model(torch.tensor([ids])).last_hidden_state[0]


def test_embeddings_are_the_encoders_states_of_the_real_tokens(checkpoint):
    encoder = encoder_for("umt5", 8, 32, str(checkpoint))
    (states,) = encoder.encode_all(["walk on"])
    assert states.dtype == torch.bfloat16
    assert torch.equal(states, reference(checkpoint, [3, 4, 1]))


def test_cut_prompts_are_counted_with_the_closing_token(checkpoint):
    prompts = {"long": "walk on walk on stop", "fits": "walk on stop"}
    table = build_table(prompts, encoder_for("umt5", 4, 32, str(checkpoint)), 4)
    assert table.cut == {"long": 6}
    assert table.lengths.tolist() == [1, 4, 4]  # NULL_PROMPT, fits, long


def test_a_batch_of_unlike_prompts_gives_each_its_own_states(checkpoint, monkeypatch):
    monkeypatch.setattr(umt5, "_BATCH_TOKENS", 12)
    prompts = {"walk on walk on stop": [3, 4, 3, 4, 5, 1], "": [1], "stop": [5, 1], "on": [4, 1]}
    encoder = encoder_for("umt5", 8, 32, str(checkpoint))
    calls = []
    monkeypatch.setattr(
        umt5.Umt5Encoder, "_states",
        lambda self, tokens, plain=umt5.Umt5Encoder._states: calls.append(tokens)
        or plain(self, tokens),
    )  # fmt: skip
    encoded = encoder.encode_all(list(prompts))
    # shortest first, padded sizes within 12 tokens: 3 prompts of 2, then one of 6
    assert calls == [[[1], [5, 1], [4, 1]], [[3, 4, 3, 4, 5, 1]]]
    for states, ids in zip(encoded, prompts.values(), strict=True):
        # padding is masked: only bf16 rounding (2⁻⁸ of values around 1) may differ
        torch.testing.assert_close(states, reference(checkpoint, ids), atol=0.02, rtol=0.02)


def test_the_table_is_cut_and_zero_behind_the_tokens(checkpoint):
    encoder = encoder_for("umt5", 4, 32, str(checkpoint))
    table = build_table({"far": "walk " * 9, "go": "walk on"}, encoder, 4)
    assert table.keys == ("NULL_PROMPT", "far", "go")
    assert table.lengths.tolist() == [1, 4, 3]  # the empty prompt is its closing token
    for row, length in enumerate(table.lengths):
        assert table.embeddings[row, :length].any(dim=1).all()
        assert not table.embeddings[row, length:].any()


def test_a_pipeline_directory_is_read(checkpoint, tmp_path):
    save_tokenizer(tmp_path / "tokenizer", WORDS)
    save_model(tmp_path / "text_encoder")
    (states,) = encoder_for("umt5", 8, 32, str(tmp_path)).encode_all(["stop"])
    assert torch.equal(states, reference(checkpoint, [5, 1]))


def refused(directory, message, dim=32):
    with pytest.raises(UserError, match=message):
        encoder_for("umt5", 8, dim, str(directory))


def test_another_width_is_refused(checkpoint):
    refused(checkpoint, r"width 32, but prep.text.dim is 64", dim=64)


def test_a_missing_directory_is_refused(tmp_path):
    refused(tmp_path / "nowhere", r"prep\.text\.dir: .*nowhere/config\.json not found")


def test_another_model_is_refused(damaged):
    config = json.loads((damaged / "config.json").read_text())
    (damaged / "config.json").write_text(json.dumps({**config, "model_type": "t5"}))
    refused(damaged, "model_type 't5'")


def test_a_missing_tokenizer_is_refused(damaged):
    (damaged / "tokenizer.json").unlink()
    (damaged / "tokenizer_config.json").unlink()
    refused(damaged, "no tokenizer in")


def test_a_tokenizer_of_more_words_is_refused(damaged):
    save_tokenizer(damaged, WORDS | {f"w{n}": n for n in range(6, 20)})
    refused(damaged, "has 20 words, the model 16")


def test_cut_weights_are_refused(damaged):
    file = damaged / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    refused(damaged, "no whole UMT5 weights")


def test_a_missing_tensor_is_refused(damaged):
    file = damaged / "model.safetensors"
    tensors = load_file(file)
    name = "encoder.block.1.layer.0.SelfAttention.q.weight"
    del tensors[name]
    save_file(tensors, file, metadata={"format": "pt"})
    refused(damaged, f"lack {name}")


def test_a_misshapen_tensor_is_refused(damaged):
    file = damaged / "model.safetensors"
    tensors = load_file(file)
    name = "encoder.block.1.layer.0.SelfAttention.q.weight"
    tensors[name] = tensors[name][:16].clone()
    save_file(tensors, file, metadata={"format": "pt"})
    refused(damaged, "no whole UMT5 weights")


def test_missing_weights_are_refused(damaged):
    (damaged / "model.safetensors").unlink()
    refused(damaged, "no whole UMT5 weights")
