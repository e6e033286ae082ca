"""What a check of the ledger found: in words, as plain data, and what of it makes the check fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from kiln_build.difference.images import Worse
from kiln_build.front import source
from kiln_build.ledger import file as ledger_file
from kiln_build.ledger import ledger
from kiln_build.ledger import reasons as ledger_reasons
from kiln_build.ledger.file import short
from kiln_build.ledger.ledger import Difference, Shelf
from kiln_recipe.compile.toolchain import Toolchain
from kiln_recipe.console.tables import plural
from kiln_recipe.errors import UsageError

_SHOWN = 3  # names in a line; --json has all


class Report:
    """What a check found.

    Args:
        names: of the variants that are looked at.
        folder: of the ledger and its reasons.
        against: the revision that images are held against; None: HEAD where the ledger has changes, else HEAD^.
        is_whole: the shelves have all targets, so that a reason of their families which applies to nothing there covers
            nothing.
        others: there are families besides, so that what is not of the shelves' families is not looked at.

    Raises:
        UsageError: there is no such revision.
        RecipeError, ArtifactError: the reasons, or the ledger of that revision, are malformed.
    """

    def __init__(
        self,
        shelves: Sequence[Shelf],
        names: frozenset[str],
        folder: Path,
        against: str | None,
        chain: Toolchain,
        is_whole: bool,
        others: bool = False,
    ) -> None:
        self.shelves, self.names, self.folder, self.chain, self.others = shelves, names, folder, chain, others
        self.differences = [(shelf, ledger.compare(shelf, names)) for shelf in shelves]
        self.notes: list[str] = []
        self.worse = self._worse(against)
        self.reasons = ledger_reasons.read(folder)
        self.uncovered = ledger_reasons.uncovered(self.worse, self.reasons)
        self.unused = self._unused() if is_whole else []
        self.strangers = self._strangers() if is_whole and not others else []
        self.wrong: list[str] | None = None
        self.seed = ""

    def _worse(self, against: str | None) -> list[Worse]:
        found: dict[tuple[str, str], Worse] = {}
        revision = self._revision(against)
        for shelf in self.shelves:
            if shelf.kept is None:
                continue
            worse = ledger_reasons.worse_in(shelf.kept)
            text = source.file_at(shelf.path, revision) if revision else None
            if text is not None:
                name = f"{revision}:{shelf.path.name}"
                old = ledger_file.parse(text.decode(errors="replace"), name, in_order=False)
                worse += ledger_reasons.worse_than(old, shelf.kept, revision)
            elif revision:
                self.notes.append(f"{revision} has no ledger of {shelf.family} on {shelf.target.name} to compare with")
            for one in worse:
                found.setdefault((one.name, one.measure), one)
        return list(found.values())

    def _revision(self, against: str | None) -> str:
        """What images are held against; "" if that is not there, which `notes` says."""
        revision = against or ("HEAD" if source.has_changes(self.folder) else "HEAD^")
        if source.has_revision(self.folder, revision):
            return revision
        if against:
            raise UsageError(
                f"--against {against} is not a revision of the ledger's repository; give a commit or a tag"
            )
        where = f"there is no {revision} here" if source.is_in_checkout(self.folder) else "this is not a git checkout"
        self.notes.append(f"{where}: what got worse is known only from the ledger's own record (`was`)")
        return ""

    def _unused(self) -> list[ledger_reasons.Reason]:
        unused = ledger_reasons.unused(self.worse, self.reasons)
        if not self.others:
            return unused
        families = {shelf.family for shelf in self.shelves}
        return [reason for reason in unused if reason.images.partition(".")[0] in families]

    def _strangers(self) -> list[str]:
        """Files of the ledger that nothing here makes."""
        known = {shelf.path for shelf in self.shelves}
        return sorted(str(path) for path in self.folder.glob("*/*.txt") if path not in known)

    def add_sample(self, seed: str, drawn: int, wrong: list[str]) -> None:
        """What came of compiling a sample anew: a sentence for each image that is not as the ledger says."""
        self.seed, self.drawn, self.wrong = seed, drawn, wrong

    def problems(self) -> list[str]:
        """A clause for each thing that is not as it must be."""
        found = []
        totals: Counter[str] = Counter()
        for _, difference in self.differences:
            totals.update({name: len(names) for name, names in asdict(difference).items()})
        if number := totals["missing"] + totals["changed"]:
            found.append(
                f"{number} variants of the tree ({self._kernels()}) are not in the ledger, or have another key there"
            )
        if totals["gone"]:
            found.append(f"the ledger has {totals['gone']} variants that the tree does not make")
        if totals["miscounted"]:
            found.append(f"{totals['miscounted']} lines have blocks that do not follow from the limits in targets.yaml")
        if found:
            found = [", ".join(found) + "; run `kiln ledger --update --store FOLDER`" + self._toolchain()]
        if self.strangers:
            found.append(f"no recipe or target makes {', '.join(self.strangers[:_SHOWN])}; remove these files")
        if self.uncovered:
            found.append(
                f"{len({one.name for one in self.uncovered})} images are worse than before; improve them, or give the "
                "reason in ledger/reasons.yaml"
            )
        if self.unused:
            found.append(
                f"no image needs {plural(len(self.unused), 'reason')} in ledger/reasons.yaml, or one of its measures; "
                "remove what applies to nothing"
            )
        if self.wrong:
            found.append(f"{len(self.wrong)} images of the sample differ from the ledger")
        return found

    def _kernels(self) -> str:
        """Those whose images are to be compiled."""
        found = {name.partition("[")[0] for _, one in self.differences for name in (*one.missing, *one.changed)}
        return ", ".join(sorted(found))

    def _toolchain(self) -> str:
        others = {s.kept.triton for s in self.shelves if s.kept and s.kept.toolchain != short(self.chain.identity)}
        if not others:
            return ""
        made_with = f"Triton {', '.join(sorted(others))}"
        return f" (it was made with another toolchain: {made_with}; here Triton {self.chain.triton_version})"

    def text(self) -> str:
        lines = []
        for shelf, difference in self.differences:
            keys = len(set(shelf.keys.values()))
            line = f"{shelf.family} on {shelf.target.name}: {len(shelf.places)} variants, {keys} keys"
            lines.append(line if difference.is_empty else f"{line}; {_said(difference)}")
        lines += self.notes
        bare = {id(one) for one in self.uncovered}
        lines += [f"worse: {one.sentence}" for one in self.worse if id(one) in bare]
        if reasoned := len(self.worse) - len(bare):
            lines.append(
                f"worse, with a reason in ledger/reasons.yaml: {plural(reasoned, 'measure')}; --json lists them"
            )
        lines += [f"applies to nothing: {reason.images} ({' and '.join(reason.measures)})" for reason in self.unused]
        if self.wrong is not None:
            lines.append(
                f"sample by seed {self.seed}: {self.drawn} images compiled, {len(self.wrong)} differ from the ledger"
            )
            lines += self.wrong
        return "\n".join(lines)

    def document(self) -> dict:
        bare = {id(one) for one in self.uncovered}
        return {
            "ledgers": [
                {
                    "family": shelf.family,
                    "target": shelf.target.name,
                    "variants": len(shelf.places),
                    "keys": len(set(shelf.keys.values())),
                    **asdict(difference),
                }
                for shelf, difference in self.differences
            ],
            "notes": self.notes,
            "worse": [
                {
                    "name": one.name, "measure": one.measure, "from": one.change[0], "to": one.change[1],
                    "since": one.since, "has_reason": id(one) not in bare,
                }
                for one in self.worse
            ],
            "unused_reasons": [reason.images for reason in self.unused],
            "sample": None if self.wrong is None else {"seed": self.seed, "images": self.drawn, "wrong": self.wrong},
        }  # fmt: skip


def _said(difference: Difference) -> str:
    said = {
        "missing": "not in the ledger",
        "changed": "with another key than in the ledger",
        "gone": "in the ledger, but not made",
        "miscounted": "with blocks that do not follow from the limits",
    }
    parts = []
    for name, names in asdict(difference).items():
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            parts.append(f"{len(names)} {said[name]}: {', '.join(names[:_SHOWN])}{more}")
    return "; ".join(parts)
