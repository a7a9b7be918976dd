import torch
from torch.nn.attention import SDPBackend

from gc25d.model import attention


def test_attention_by_hand():
    query = torch.tensor([[[[2.0, 0.0]]]])  # one token, one head of width 2
    key = torch.tensor([[[[1.0, 0.0]], [[0.0, 5.0]]]])
    value = torch.tensor([[[[1.0, 10.0]], [[3.0, 20.0]]]])
    first = torch.sigmoid(torch.tensor(2 / 2**0.5))  # softmax of (2/√2, 0)
    expected = first * value[0, 0, 0] + (1 - first) * value[0, 1, 0]
    torch.testing.assert_close(attention.attend(query, key, value)[0, 0], expected)
    bias = torch.tensor([[0.0, 2 / 2**0.5]])  # evens the two out
    result = attention.attend(query, key, value, bias)
    torch.testing.assert_close(result[0, 0], torch.tensor([2.0, 15.0]))


def test_back_ends_follow_the_capability(monkeypatch):
    assert attention.preferred_backends(torch.device("cpu")) == ()
    first = {}
    for index, capability in enumerate([(8, 9), (9, 0), (10, 0)]):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        backends = attention.preferred_backends(torch.device("cuda", index))
        assert SDPBackend.EFFICIENT_ATTENTION in backends  # serves the text's bias
        first[capability] = backends[0]
    assert first == {
        (8, 9): SDPBackend.FLASH_ATTENTION,
        (9, 0): SDPBackend.CUDNN_ATTENTION,
        (10, 0): SDPBackend.CUDNN_ATTENTION,
    }
    attention.preferred_backends.cache_clear()
