"""Executes gfx942 (CDNA3) code objects on the CPU, with dynamic checks and counters.

Flow: `assembly` compiles, `code_object` loads the ELF, `listing` proves clang's listing equal to
the bytes, `program` decodes it, `emit` turns the table in `semantics` into C, `engine` builds that,
`device` owns buffers and launches, `checks` names faults, `counters` sums up.
"""
