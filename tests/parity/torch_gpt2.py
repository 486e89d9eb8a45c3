"""GPT-2 in plain torch, with the parameter names and the layout of weights of transformers' GPT2LMHeadModel: for
machines that have torch alone."""
import torch

nn, functional = torch.nn, torch.nn.functional


class Projection(nn.Module):
    """x @ weight + bias, weight [in, out]."""

    def __init__(self, inside, outside):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inside, outside))
        self.bias = nn.Parameter(torch.empty(outside))

    def forward(self, x):
        return x @ self.weight + self.bias


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = Projection(width, 3 * width), Projection(width, width)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (part.view(B, T, self.heads, C // self.heads).transpose(1, 2) for part in self.c_attn(x).split(C, 2))
        scores = (q @ k.transpose(2, 3)) / (C // self.heads) ** 0.5
        hidden = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        y = scores.masked_fill(hidden, float("-inf")).softmax(3) @ v
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc, self.c_proj = Projection(width, 4 * width), Projection(4 * width, width)

    def forward(self, x):
        return self.c_proj(functional.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.ln_2, self.mlp = nn.LayerNorm(width), Mlp(width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Body(nn.Module):
    def __init__(self, vocab, context, layers, heads, width):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return self.ln_f(x)


class Gpt2(nn.Module):
    """The head is the tokens' table. forward() is the mean loss."""

    def __init__(self, vocab, context, layers, heads, width):
        super().__init__()
        self.transformer = Body(vocab, context, layers, heads, width)

    def forward(self, tokens, targets):
        logits = self.transformer(tokens) @ self.transformer.wte.weight.T
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
