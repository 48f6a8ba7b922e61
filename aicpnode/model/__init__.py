"""The transformer, its layout in one flat vector, and text generation."""
