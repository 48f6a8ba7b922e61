"""The command line, thin: options in, one call, a result printed. Heavy imports happen inside commands."""
