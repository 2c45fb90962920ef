"""polykv: many agents read one long document; its K/V is held once, compressed, and attention reads the codes."""

__version__ = "0.1.0"
