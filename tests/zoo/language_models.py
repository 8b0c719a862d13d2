"""Tiny language models of transformers, from configs, with data and slow truths for them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from spiritlevel.testing import references

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

V, WIDTH, LENGTH, NUM_CLASSES = 11, 4, 5, 3
BERT = {
    "vocab_size": V,
    "hidden_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 6,
    "max_position_embeddings": 8,
}
BART = {
    "vocab_size": V,
    "d_model": WIDTH,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 1,
    "decoder_attention_heads": 1,
    "encoder_ffn_dim": 6,
    "decoder_ffn_dim": 6,
    "max_position_embeddings": 8,
}
T5 = {"vocab_size": V, "d_model": WIDTH, "d_kv": 4, "d_ff": 6, "num_layers": 1, "num_heads": 1}
GPT2 = {"vocab_size": V, "n_embd": WIDTH, "n_layer": 1, "n_head": 1, "n_positions": 8, "n_inner": 6}
DISTIL = {"vocab_size": V, "dim": WIDTH, "n_layers": 1, "n_heads": 1, "hidden_dim": 6}
XLNET = {"vocab_size": V, "d_model": WIDTH, "n_layer": 1, "n_head": 1, "d_inner": 6}
CLASSES = {"num_labels": NUM_CLASSES}

# class of the model, options of its config, what its labels are
MODELS = {
    "gpt2": ("GPT2LMHeadModel", GPT2, "next token"),
    "llama": ("LlamaForCausalLM", BERT, "next token"),
    "bert masked": ("BertForMaskedLM", BERT, "token"),
    "bert sequences": ("BertForSequenceClassification", BERT | CLASSES, "sequence"),
    "bert tokens": ("BertForTokenClassification", BERT | {"num_labels": V}, "token"),
    "t5": ("T5ForConditionalGeneration", T5 | {"decoder_start_token_id": 0}, "token"),
    "distilbert": ("DistilBertForMaskedLM", DISTIL | {"max_position_embeddings": 8}, "token"),
    "gpt2 sequences": (
        "GPT2ForSequenceClassification",
        GPT2 | CLASSES | {"pad_token_id": 1},
        "sequence",
    ),
    "bart": ("BartForConditionalGeneration", BART, "token"),
    "bart sequences": ("BartForSequenceClassification", BART | CLASSES, "sequence"),
    # called causal by transformers, but they compare an output with the label at its own place
    "bart decoder": ("BartForCausalLM", BART, "token"),
    "xlnet": ("XLNetLMHeadModel", XLNET, "token"),
}
CAUSAL = ["gpt2", "llama"]
HEADS = {
    "gpt2": "lm_head",
    "llama": "lm_head",
    "bert masked": "cls.predictions.decoder",
    "bert sequences": "classifier",
    "bert tokens": "classifier",
    "t5": "lm_head",
    "distilbert": "vocab_projector",
}
# RMSNorm and the softmax of attention compute in float32 whatever the model's type
FLOAT32_INSIDE = ["llama", "t5"]
TIED = ["gpt2", "bert masked", "t5", "distilbert"]


def build(name, dtype=torch.float64, **changes):
    """Away from the tiny weights that transformers starts from, where nothing would show."""
    kind, options, _ = MODELS[name]
    kind = getattr(transformers, kind)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind(kind.config_class(**{**options, **changes}))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.to(dtype).eval()


def batches(name, sizes=(3, 1), seed=1):
    """Padded on the right: neither attended to nor counted, and unevenly many tokens a batch."""
    g = torch.Generator().manual_seed(seed)
    found = []
    for index, size in enumerate(sizes):
        ids = torch.randint(3, V, (size, LENGTH), generator=g)
        attention = torch.ones_like(ids)
        attention[0, LENGTH - 2 :] = 0
        ids[attention == 0] = 1
        ids[:, 2 - index] = 2  # end of sequence, once in each as BART's classifier wants it
        labels = torch.randint(V, (size, LENGTH), generator=g)
        if MODELS[name][2] == "next token":
            labels = ids.clone()
        labels[attention == 0] = -100
        labels[-1, index] = -100
        if MODELS[name][2] == "sequence":
            labels = torch.randint(NUM_CLASSES, (size,), generator=g)
        found.append({"input_ids": ids, "attention_mask": attention, "labels": labels})
    return found


def counted(name, labels):
    """How many labels of a batch the model's own loss averages over."""
    labels = labels[:, 1:] if MODELS[name][2] == "next token" else labels
    return int((labels != -100).sum())


class Dense:
    """Hessian and GGN of the model's own mean loss, column by column."""

    def __init__(self, name, model, data):
        self.name, self.model = name, model
        self.parameters = dict(model.named_parameters())
        self.logits, self.labels = [], []
        for batch in data:
            inputs = dict(batch)
            labels = inputs.pop("labels")
            if name == "t5":
                inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
            with sdpa_kernel(SDPBackend.MATH):
                logits = model(**inputs).logits
            if MODELS[name][2] == "next token":
                logits, labels = logits[:, :-1], labels[:, 1:]
            self.logits.append(logits.reshape(-1, logits.shape[-1]))
            self.labels.append(labels.flatten())
        self.logits, self.labels = torch.cat(self.logits), torch.cat(self.labels)

    def rows(self, outputs):
        """The derivative of every entry of `outputs` in all parameters, a row each."""
        parts = torch.autograd.grad(
            outputs.flatten(),
            list(self.parameters.values()),
            torch.eye(outputs.numel(), dtype=outputs.dtype),
            is_grads_batched=True,
            retain_graph=True,
            materialize_grads=True,
        )
        return torch.cat([part.flatten(1) for part in parts], dim=1)

    def hessian(self):
        """Of the mean loss in all parameters, a tied one once."""
        loss = F.cross_entropy(self.logits, self.labels)
        parameters = list(self.parameters.values())
        first = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
        return self.rows(torch.cat([part.flatten() for part in first]))

    def ggn_trace(self):
        """Tr J' A J."""
        z = self.logits.detach()
        A = torch.func.hessian(lambda v: F.cross_entropy(v.view(z.shape), self.labels))(z.flatten())
        J = self.rows(self.logits)
        return float(torch.einsum("ip,ij,jp->", J, A, J))

    def kappa(self, H):
        """Relative flatness of every weight that acts as a matrix, summed."""
        total, start = 0.0, 0
        owners = {id(m.weight): m for m in self.model.modules() if hasattr(m, "weight")}
        owners |= {id(m.weight): m for m in self.model.modules() if isinstance(m, nn.Embedding)}
        for parameter in self.parameters.values():
            part = slice(start, start + parameter.numel())
            start = part.stop
            module = owners.get(id(parameter))
            view = None if module is None else references.matrix_view(module)
            if type(module).__name__ == "Conv1D":  # GPT-2's linear layer: its weight is (in, out)
                index = torch.arange(parameter.numel()).view(parameter.shape)
                view = references.MatrixView([list(index.T)], list(index))
            if view is not None:
                total += references.kappa(H[part, part], parameter, view)
        return total


def head_by_hand(name, model, data):
    """Hessian of the mean loss in the head's weight, its input held fixed; and the Gini term."""
    head, inputs, labels = model.get_submodule(HEADS[name]), [], []
    handle = head.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach()))
    with torch.no_grad():
        for batch in data:
            model(**batch)
    handle.remove()
    labels = [batch["labels"] for batch in data]
    if MODELS[name][2] == "next token":
        inputs, labels = [a[:, :-1] for a in inputs], [y[:, 1:] for y in labels]
    features = torch.cat([a.reshape(-1, a.shape[-1]) for a in inputs])
    labels = torch.cat([y.flatten() for y in labels])
    weight = head.weight.detach()
    bias = 0.0 if head.bias is None else head.bias.detach()

    def loss(w):
        return F.cross_entropy(features @ w.view(weight.shape).T + bias, labels)

    p = (features @ weight.T + bias)[labels != -100].softmax(dim=1)
    H = torch.func.hessian(loss)(weight.flatten())
    return H, head, float((1 - p.square().sum(dim=1)).mean())
