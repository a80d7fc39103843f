"""The models that the labs train: one Transformer, GPT style or Llama style by configuration."""

from pdtlib.engine.models.attention import Attention
from pdtlib.engine.models.balance import Balance
from pdtlib.engine.models.mlp import Mlp
from pdtlib.engine.models.moe import MoE
from pdtlib.engine.models.transformer import Layer, Transformer, draw

__all__ = ["Attention", "Balance", "Layer", "Mlp", "MoE", "Transformer", "draw"]
