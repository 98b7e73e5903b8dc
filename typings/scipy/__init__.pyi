"""What we use of scipy, which ships no types."""
