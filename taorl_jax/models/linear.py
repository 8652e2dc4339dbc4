"""Matrix products written as the platform runs them best."""

import math

import jax
import jax.numpy as jnp


def transposed_product(x_xNxI, y_xNxO):
    """x.T @ y over leading axes that both have, with float32 sums.

    XLA's CPU backend runs a product that contracts the leading axes of both factors at about half speed;
    with a transposed copy of `x` it runs at full speed (`tools/benchmark_update.py` says what that buys).
    """

    def on_cpu(x, y):
        # The barrier keeps XLA from folding the transposition back into the product.
        return jnp.matmul(
            jax.lax.optimization_barrier(x.swapaxes(-1, -2)), y, preferred_element_type=jnp.float32
        )

    def elsewhere(x, y):
        return jnp.einsum("...ni,...no->...io", x, y, preferred_element_type=jnp.float32)

    return jax.lax.platform_dependent(x_xNxI, y_xNxO, cpu=on_cpu, default=elsewhere)


@jax.custom_vjp
def linear(x_NxI, kernel_IxO):
    """`x @ kernel`, whose weight gradient is a `transposed_product`."""
    return x_NxI @ kernel_IxO


def _forward(x_NxI, kernel_IxO):
    return linear(x_NxI, kernel_IxO), (x_NxI, kernel_IxO)


def _backward(residuals, grad_NxO):
    x_NxI, kernel_IxO = residuals
    kernel_grad = transposed_product(x_NxI, grad_NxO).astype(kernel_IxO.dtype)
    return grad_NxO @ kernel_IxO.T, kernel_grad


linear.defvjp(_forward, _backward)


def project(x, kernel, outputs: int = 1):
    """Contracts the last axes of `x` with the first of `kernel`, whose last `outputs` stay."""
    inputs = kernel.ndim - outputs
    kept, made = x.shape[: x.ndim - inputs], kernel.shape[inputs:]
    kernel_IxO = kernel.reshape(-1, math.prod(made))
    return linear(x.reshape(-1, kernel_IxO.shape[0]), kernel_IxO).reshape(*kept, *made)
