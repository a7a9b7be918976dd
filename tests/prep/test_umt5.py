import json
import warnings

import pytest
import torch

from gc25d.errors import UserError
from gc25d.prep.text import build_table, encoder_for


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A randomly initialised UMT5 encoder of width 32 with a word tokenizer that closes with 1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tokenizers import Tokenizer, models, pre_tokenizers, processors
        from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel
    path = tmp_path_factory.mktemp("umt5")
    torch.manual_seed(0)
    config = UMT5Config(
        vocab_size=16, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, is_decoder=False
    )
    UMT5EncoderModel(config).save_pretrained(path)
    words = {"<pad>": 0, "</s>": 1, "<unk>": 2, "walk": 3, "on": 4, "stop": 5}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    ).save_pretrained(path)
    return path


def test_embeddings_are_the_encoders_states_of_the_real_tokens(checkpoint):
    from transformers import UMT5EncoderModel

    model = UMT5EncoderModel.from_pretrained(checkpoint, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        expected = model(torch.tensor([[3, 4, 1]])).last_hidden_state[0]
    encoder = encoder_for("umt5", 8, 32, str(checkpoint))
    assert torch.equal(encoder.encode("walk on"), expected)
    table = build_table({"go": "walk on"}, encoder, 8)
    assert table.lengths.tolist() == [1, 3]  # the empty prompt is its closing token
    assert torch.equal(table.embeddings[1, :3], expected)
    assert not table.embeddings[1, 3:].any()


def test_long_prompts_are_cut(checkpoint):
    assert encoder_for("umt5", 4, 32, str(checkpoint)).encode("walk " * 9).shape == (4, 32)


def test_another_width_is_refused(checkpoint):
    with pytest.raises(UserError, match=r"width 32, but prep.text.dim is 64"):
        encoder_for("umt5", 8, 64, str(checkpoint))


def test_a_directory_without_an_encoder_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "umt5"}))
    with pytest.raises(UserError, match=r"prep\.text\.dir"):
        encoder_for("umt5", 8, 32, str(tmp_path))
