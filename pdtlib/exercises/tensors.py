"""What graders of tensors share: when two are equal, how a wrong value is named, an MLP of two matrices."""

from dataclasses import dataclass

import torch

TOLERANCE = 1e-11


def same(expected: torch.Tensor, got: object, *, rtol: float = TOLERANCE, atol: float = TOLERANCE) -> bool:
    """Whether ``got`` is a tensor equal to ``expected``, by default up to rounding in float64."""
    return (
        isinstance(got, torch.Tensor)
        and got.shape == expected.shape
        and torch.allclose(got, expected, rtol=rtol, atol=atol)
    )


def shape_text(value: object) -> str:
    """The shape of a tensor, or the type of what is none."""
    return f"{tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__


@dataclass(frozen=True)
class MlpCase:
    """An MLP of h, f, h on some tokens, and the gradient that comes back to its output."""

    title: str
    tokens: int
    hidden: int
    inner: int
    seed: int

    def drawn(self) -> dict[str, torch.Tensor]:
        """x, A, B and the gradient of the whole output, the same on every rank."""
        generator = torch.Generator().manual_seed(self.seed)
        shapes = {
            "x": (self.tokens, self.hidden),
            "a": (self.hidden, self.inner),
            "b": (self.inner, self.hidden),
            "grad": (self.tokens, self.hidden),
        }
        return {
            name: torch.randn(*shape, generator=generator, dtype=torch.float64) / shape[0] ** 0.5
            for name, shape in shapes.items()
        }

    def whole(self) -> dict[str, torch.Tensor]:
        """Output and gradients of one process."""
        drawn = self.drawn()
        x, a, b = (drawn[name].requires_grad_() for name in ("x", "a", "b"))
        y = torch.tanh(x @ a) @ b
        y.backward(drawn["grad"])
        return {"y": y.detach(), "x": x.grad, "a": a.grad, "b": b.grad}  # type: ignore[dict-item]
