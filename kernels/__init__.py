"""Arrays in, arrays out: gradient codec, exact aggregation, outer step. No torch, no I/O."""
