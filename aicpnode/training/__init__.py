"""From text to pseudo-gradients: corpus, batches, the inner loop, validation, checkpoints."""
