"""The meanings the pass recognises: one file per meaning, each a list of plain spellings."""
