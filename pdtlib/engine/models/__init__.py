"""The models that the labs train: one Transformer, GPT style or Llama style by configuration."""

from pdtlib.engine.models.attention import Attention
from pdtlib.engine.models.transformer import Layer, Mlp, Transformer, draw

__all__ = ["Attention", "Layer", "Mlp", "Transformer", "draw"]
