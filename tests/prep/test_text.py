import pytest
import torch
from safetensors.torch import load_file

from gc25d.errors import UserError
from gc25d.prep.text import (
    NULL_PROMPT,
    ByteEncoder,
    TextTable,
    build_table,
    cut_faults,
    encoder_for,
    read_table,
    write_table,
)
from gc25d.tensors import read_metadata


def cosine(a, b):
    return float(torch.cosine_similarity(a.mean(0), b.mean(0), dim=0))


def test_a_token_is_a_byte():
    encoder = ByteEncoder(64, 32)
    assert encoder.encode("walk on").shape == (7, 32)
    assert encoder.encode("wälk").shape == (5, 32)  # ä is two bytes in UTF-8
    assert encoder.encode("").shape == (0, 32)
    assert encoder.encode("x" * 100).shape == (64, 32)


def test_embeddings_have_unit_variance_and_no_mean():
    """21 × 4,096 sums of three uniforms: standard errors 0.0034 and about 0.004."""
    values = ByteEncoder(64, 4096).encode("the boss walks slowly")
    assert abs(values.mean()) < 0.02
    assert abs(values.var() - 1) < 0.1


def test_equal_prompts_agree_and_different_ones_differ():
    encoder = ByteEncoder(64, 64)
    assert torch.equal(encoder.encode("walk"), ByteEncoder(64, 64).encode("walk"))
    prompts = ["walk", "wall", "klaw", "walk ", " walk", "w", "ww", "walk walk", "walkwalk"]
    means = {encoder.encode(prompt).mean(0).numpy().tobytes() for prompt in prompts}
    assert len(means) == len(prompts)


def test_prompts_that_share_words_are_nearer():
    encoder = ByteEncoder(64, 512)
    walk, same, other = (
        encoder.encode(text)
        for text in ("player walks forward", "player turns forward", "quick brown bottles")
    )
    assert cosine(walk, same) > cosine(walk, other) + 0.1


def test_a_cut_prompt_keeps_the_tokens_that_remain():
    whole, cut = ByteEncoder(64, 16).encode("walk forward"), ByteEncoder(4, 16).encode("walk away")
    assert torch.equal(whole[:4], cut)


def test_table_is_sorted_padded_and_has_the_empty_prompt(tmp_path):
    encoder = ByteEncoder(8, 16)
    table = build_table({"walk": "go", "attack": "hit it", "Zed": "go"}, encoder, 8)
    assert table.keys == (NULL_PROMPT, "Zed", "attack", "walk")
    assert table.key_to_id == {k: i for i, k in enumerate(sorted(table.keys))}
    assert table.null_id == 0
    assert table.embeddings.shape == (4, 8, 16)
    assert table.embeddings.dtype == torch.bfloat16
    assert table.lengths.tolist() == [0, 2, 6, 2]
    assert torch.equal(table.embeddings[2, :6], encoder.encode("hit it").bfloat16())
    assert not table.embeddings[2, 6:].any()
    assert not table.embeddings[0].any()
    assert torch.equal(table.embeddings[1], table.embeddings[3])
    write_table(tmp_path / "table.safetensors", table)
    back = read_table(tmp_path / "table.safetensors")
    assert back.keys == table.keys
    assert torch.equal(back.embeddings, table.embeddings)
    assert torch.equal(back.lengths, table.lengths)
    assert set(load_file(tmp_path / "table.safetensors")) == {"embeddings", "lengths"}


def test_writing_twice_gives_equal_bytes(tmp_path):
    for name in ("a", "b"):
        write_table(tmp_path / name, build_table({"k": "go"}, ByteEncoder(8, 16), 8))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_reserved_key_may_be_used_for_the_empty_prompt_only():
    assert build_table({NULL_PROMPT: ""}, ByteEncoder(8, 4), 8).keys == (NULL_PROMPT,)
    with pytest.raises(UserError, match="reserved for the empty prompt"):
        build_table({NULL_PROMPT: "nothing"}, ByteEncoder(8, 4), 8)


def test_unreadable_tables_are_user_errors(tmp_path):
    path = tmp_path / "table.safetensors"
    with pytest.raises(UserError, match="no readable text table"):
        read_table(path)
    write_table(path, TextTable(torch.zeros(2, 3, 4).bfloat16(), torch.zeros(2).long(), ("a",)))
    with pytest.raises(UserError, match="differ in number"):
        read_table(path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UserError, match="no readable text table"):
        read_table(path)


def test_encoders_by_name():
    assert isinstance(encoder_for("bytes", 8, 4, ""), ByteEncoder)
    with pytest.raises(UserError, match="expected 'bytes' or 'umt5'"):
        encoder_for("clip", 8, 4, "")


def test_a_word_sounds_the_same_in_every_place():
    """Without the place's vectors, known from a prompt of spaces, "go" is the same twice."""
    encoder = ByteEncoder(64, 128)
    tokens, places = encoder.encode("go on go"), encoder.encode(" " * 8)
    assert torch.allclose(tokens[:2] - places[:2], tokens[6:] - places[6:], atol=1e-6)
    assert not torch.allclose(tokens[1] - places[1], tokens[3] - places[3], atol=1e-1)  # o, o


def test_an_embedding_that_is_not_finite_is_an_error_that_names_the_key():
    class Broken(ByteEncoder):
        def encode(self, prompt):
            tokens = super().encode(prompt)
            return tokens * torch.nan if prompt == "hit it" else tokens

    with pytest.raises(UserError, match="embedding of text key 'attack': 48 of 48 values"):
        build_table({"walk": "go", "attack": "hit it"}, Broken(8, 8), 8)


def test_cut_prompts_are_kept_account_of(tmp_path):
    """Two prompts that differ behind the eighth byte become equal, and both are named."""
    prompts = {"left": "go there left", "right": "go there right", "stay": "stay put"}
    table = build_table(prompts, ByteEncoder(8, 4), 8)
    rows = table.key_to_id
    assert torch.equal(table.embeddings[rows["left"]], table.embeddings[rows["right"]])
    assert table.cut == {"left": 13, "right": 14}
    path = tmp_path / "table.safetensors"
    write_table(path, table)
    assert read_table(path).cut == table.cut
    faults = cut_faults(table)
    assert list(faults) == ["text key 'left'", "text key 'right'"]
    assert "has 13 tokens and is cut to the first 8" in faults["text key 'left'"]


def test_a_table_without_cut_prompts_says_nothing_of_them(tmp_path):
    path = tmp_path / "table.safetensors"
    write_table(path, build_table({"k": "eight by"}, ByteEncoder(8, 4), 8))
    assert set(read_metadata(path)) == {"keys"}
    assert cut_faults(read_table(path)) == {}
