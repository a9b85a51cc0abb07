"""The product's gfx942 kernels, executed: the bytes that ship, planned by the product's plan."""
