"""Batched greedy decoding of the training model with a key and value cache, for evaluation."""

import torch
import torch.nn.functional as F
from torch import Tensor

from model import Pocket, attention_inputs, experts, rms_norm, route


class Decoder:
    def __init__(self, model: Pocket, pad: int, end: int):
        self.model, self.pad, self.end = model, pad, end
        with torch.no_grad():
            self.layers = model.layer_weights()
            self.embed = model.parameters["embed"].to(model.dtype)
            self.head = model.parameters["head"].to(model.dtype)
        self.device = self.embed.device
        self.observe = None  # called with (moe layer, chosen [batch, length, experts]) when set
        # Tokens sent to each expert, [moe layers, experts], since the last `take_loads`.
        self.loads = torch.zeros(model.c.n_moe_layers, model.c.n_routed_experts, device=self.device)

    def take_loads(self) -> Tensor:
        loads, self.loads = self.loads, torch.zeros_like(self.loads)
        return loads.cpu()

    def _forward(self, x: Tensor, positions: Tensor, attend, real: Tensor) -> Tensor:
        c, m = self.model.c, self.model
        cos, sin = m.cos[positions], m.sin[positions]
        for i, w in enumerate(self.layers):
            q, k, v = attention_inputs(c, rms_norm(x, w["attn_norm"], c.rms_norm_eps), cos, sin, w)
            x = x + attend(i, q, k, v).transpose(1, 2).flatten(-2) @ w["o"].T
            h = rms_norm(x, w["mlp_norm"], c.rms_norm_eps)
            if i < c.first_k_dense_replace:
                hidden = F.silu((h @ w["dense_gate"].T).float()) * (h @ w["dense_up"].T).float()
                x = x + hidden.to(x.dtype) @ w["dense_down"].T
                continue
            layer = i - c.first_k_dense_replace
            weights, chosen, _ = route(c, h, w["router"], m.bias[layer])
            if self.observe:
                self.observe(layer, chosen)
            self.loads[layer] += (chosen * real.unsqueeze(-1)).flatten(0, -2).sum(0)
            x = x + experts(c, h, weights, w)
        return rms_norm(x, m.parameters["final_norm"], c.rms_norm_eps)

    @torch.no_grad()
    def _prompt_states(self, prompts: list[list[int]], room: int):
        """Caches with `room` free places, the prompts' lengths and padded tokens, and the final states."""
        c = self.model.c
        lengths = torch.tensor([len(p) for p in prompts], device=self.device)
        longest = int(lengths.max())
        padded = [prompt + [self.pad] * (longest - len(prompt)) for prompt in prompts]
        tokens = torch.tensor(padded, device=self.device)
        shape = (len(prompts), c.num_attention_heads, longest + room)
        dtype = self.model.dtype
        cache = [
            (torch.zeros(*shape, c.qk_head_dim, dtype=dtype, device=self.device),
             torch.zeros(*shape, c.v_head_dim, dtype=dtype, device=self.device))
            for _ in self.layers
        ]

        def attend(i, q, k, v):
            # Padding lies to the right, where no real query looks.
            cache[i][0][:, :, :longest], cache[i][1][:, :, :longest] = k, v
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=c.softmax_scale)

        index = torch.arange(longest, device=self.device).expand_as(tokens)
        x = self._forward(F.embedding(tokens, self.embed), index, attend, index < lengths[:, None])
        return cache, lengths, tokens, x

    @torch.no_grad()
    def prefill(self, prompts: list[list[int]], room: int):
        """Caches, lengths, and the logits after each prompt."""
        cache, lengths, _, x = self._prompt_states(prompts, room)
        last = x[torch.arange(len(prompts), device=self.device), lengths - 1]
        return cache, lengths, (last @ self.head.T).float()

    @torch.no_grad()
    def log_likelihoods(self, sequences: list[list[int]], tails: list[int]) -> list[float]:
        """The summed log-probability of the last `tails[i]` tokens of each sequence, given what precedes them."""
        _, lengths, tokens, x = self._prompt_states(sequences, 0)
        out = []
        for row, (tail, length) in enumerate(zip(tails, lengths.tolist())):
            logits = (x[row, length - tail - 1 : length - 1] @ self.head.T).float()
            log_p = torch.log_softmax(logits, -1)
            out.append(log_p.gather(1, tokens[row, length - tail : length, None]).sum())
        return torch.stack(out).tolist()

    @torch.no_grad()
    def generate(self, prompts: list[list[int]], limit: int) -> list[list[int]]:
        """Greedy continuations up to and without the end mark, at most `limit` tokens."""
        c = self.model.c
        cache, lengths, logits = self.prefill(prompts, limit)
        rows = torch.arange(len(prompts), device=self.device)
        places = torch.arange(cache[0][0].shape[2], device=self.device)
        done = torch.zeros(len(prompts), dtype=torch.bool, device=self.device)
        out = []
        for step in range(limit):
            token = logits.argmax(-1)
            token = torch.where(done, self.pad, token)
            done = done | (token == self.end)
            out.append(token)
            if step + 1 == limit or (step % 8 == 7 and bool(done.all())):
                break
            where = lengths + step

            def attend(i, q, k, v):
                keys, values = cache[i]
                keys[rows, :, where], values[rows, :, where] = k[:, :, 0], v[:, :, 0]
                mask = (places <= where[:, None])[:, None, None]
                return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=c.softmax_scale)

            x = F.embedding(token[:, None], self.embed)
            x = self._forward(x, where[:, None], attend, ~done[:, None])
            logits = (x[:, 0] @ self.head.T).float()
        texts = torch.stack(out, 1).tolist()
        return [row[: row.index(self.end)] if self.end in row else row for row in texts]
