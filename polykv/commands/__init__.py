"""Subcommands of `polykv`: each module has one `command`; `polykv.cli` lists them."""
