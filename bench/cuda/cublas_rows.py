"""BF16 products by cuBLAS, through PyTorch: their times, and whether a row's bits depend on the batch it is in.

For docs/decisions/cuda-own-products.md. Prints one JSON line a shape. Needs a GPU and PyTorch.
"""

import json

import torch


def main() -> None:
    torch.manual_seed(1)
    for k, n in ((7168, 2048), (2048, 7168), (576, 1536)):
        copies = 1 + (400 << 20) // (k * n * 2)
        weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
        x = torch.randn(2048, k, device="cuda", dtype=torch.bfloat16)
        alone = torch.nn.functional.linear(x[:1], weights[0])
        for tokens in (1, 8, 16, 32, 64, 256, 2048):
            out = torch.nn.functional.linear(x[:tokens], weights[0])
            rounds = []
            for _ in range(5):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                for i in range(100):
                    torch.nn.functional.linear(x[:tokens], weights[i % copies])
                end.record()
                torch.cuda.synchronize()
                rounds.append(start.elapsed_time(end) * 10)
            print(json.dumps({"op": "cublas_bf16", "shape": f"K {k} N {n} tokens {tokens}", "us": sorted(rounds)[2],
                              "first_row_equals_alone": bool(torch.equal(out[:1], alone))}))


if __name__ == "__main__":
    main()
