"""A benchmark's result: one record for each case and provider, kept as JSON and shown as tables."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from benchmarks.timing import Ceilings, Sample

Record = dict[str, Any]


@dataclass
class Result:
    """What a benchmark found.

    Attributes:
        benchmark: Its name on the command line.
        command: The command line that gives it again.
        header: See `header.environment`.
        method: How it was measured, in a few sentences.
        ceilings: What the machine reaches; None where nothing is compared with it.
        records: One for each case and provider: the case's own keys, `provider`, `us`, `low`,
            `high` (microseconds) and whatever else was measured.
        notes: One line for each thing that was asked for and is missing.
        kept: File that is written anew after each case, so that a run that is stopped leaves what
            it measured; not part of the file.
    """

    benchmark: str
    command: str
    header: dict[str, str]
    method: str
    ceilings: Ceilings | None = None
    records: list[Record] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    kept: Path | None = field(default=None, compare=False)

    def add(self, case: Record, times: dict[str, Sample], **extra: dict[str, Any]) -> None:
        """Adds a record for each provider; `extra` maps a name to a value for each provider."""
        for provider, sample in times.items():
            measured = {"us": sample.median, "low": sample.low, "high": sample.high}
            more = {name: by[provider] for name, by in extra.items() if provider in by}
            rounded = {name: round(value, 3) for name, value in measured.items()}
            self.records.append({**case, "provider": provider, **rounded, **more})
        self._keep()

    def append(self, record: Record) -> None:
        """Adds one record that is no time of a call."""
        self.records.append(record)
        self._keep()

    def _keep(self) -> None:
        if self.kept is not None:
            self.save(self.kept)

    def note(self, line: str) -> None:
        """Notes, once, what is missing, and says so at once."""
        if line not in self.notes:
            self.notes.append(line)
            print(f"missing: {line}", flush=True)

    def to_json(self) -> str:
        """The whole result, one record a line."""
        plain = asdict(self)
        del plain["kept"]
        records = ",\n  ".join(json.dumps(record) for record in plain.pop("records"))
        head = json.dumps(plain, indent=1)[:-2]
        return f'{head},\n "records": [\n  {records}\n ]\n}}\n'

    @classmethod
    def from_json(cls, text: str) -> Result:
        """Reads what `to_json` wrote.

        Raises:
            ValueError: if it is something else.
        """
        plain = json.loads(text)
        needed = {one.name for one in fields(cls)} - {"kept"}
        if not isinstance(plain, dict) or plain.keys() != needed:
            found = sorted(plain) if isinstance(plain, dict) else type(plain).__name__
            raise ValueError(f"result: got {found}, expected {sorted(needed)}")
        if plain["ceilings"] is not None:
            plain["ceilings"] = Ceilings(**plain["ceilings"])
        return cls(**plain)

    @classmethod
    def load(cls, path: Path) -> Result:
        """Reads a file that `save` wrote."""
        return cls.from_json(path.read_text())

    def save(self, path: Path) -> None:
        """Writes the JSON, its folder too."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.to_json())


def one_line(error: Exception) -> str:
    """What went wrong in one line; an error that only announces another one says that one too."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    said = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return f"{type(error).__name__}: {said}"


def merge(results: list[Result]) -> Result:
    """One result of several runs of a benchmark on one machine, in their order.

    Raises:
        ValueError: if they are of different benchmarks or machines.
    """
    first = results[0]
    machine = {key: first.header.get(key) for key in ("card", "processor", "torch")}
    for other in results[1:]:
        theirs = {key: other.header.get(key) for key in machine}
        if (other.benchmark, theirs) != (first.benchmark, machine):
            raise ValueError(
                f"merge: results do not belong together; got {other.benchmark} on {theirs}, "
                f"expected {first.benchmark} on {machine}. Merge runs of one machine."
            )
    joined = Result.from_json(first.to_json())
    joined.command = "; ".join(dict.fromkeys(result.command for result in results))
    for key in joined.header:
        facts = dict.fromkeys(result.header.get(key, "unknown") for result in results)
        joined.header[key] = ", ".join(facts)
    joined.records = [record for result in results for record in result.records]
    joined.notes = list(dict.fromkeys(note for result in results for note in result.notes))
    return joined
