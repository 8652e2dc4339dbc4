"""TAO-RL in JAX: agentic reinforcement learning with a Python tool (arXiv 2606.03762)."""
