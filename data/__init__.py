"""Data files of polykv: tables, texts. Provenance of every file: README.md beside this one."""
