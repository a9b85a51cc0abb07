"""A torch.compile backend that fuses norm, activation, FP8 quantisation and decode matmuls."""
