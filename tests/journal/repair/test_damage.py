"""Truncated, flipped and zeroed files (P11): the sound records are recovered, and exactly the others are reported."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import pytest

from scheduler.journal.errors import Damage, DamagedJournal, NotAJournal
from scheduler.journal.record import Record
from scheduler.journal.replay import recover
from scheduler.journal.store import SqliteJournal
from tests.journal.samples import Records, numbered, write
from tests.journal.toy import RULES
from tests.support.journals import latest_snapshot
from tests.support.wording import Wording

PAGE = 4096
COUNT = 200
RECORDS = numbered(COUNT, size_bytes=300)
HUGE: Records = [(1.0, facts) for _, facts in numbered(4, size_bytes=30_000)]


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal that was closed: one database file of some twenty pages, and the lock file."""
    path = tmp_path_factory.mktemp("closed") / "journal.db"
    with write(path, RECORDS, durable=True):
        pass
    return path


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal whose writer was killed: half of the records in the database, all later ones in the log only."""
    path = tmp_path_factory.mktemp("killed") / "journal.db"
    with write(path, RECORDS[: COUNT // 2], durable=True):
        pass
    journal = write(path, RECORDS[COUNT // 2 :], durable=True)
    for name in ("journal.db", "journal.db-wal", "journal.db.lock"):
        shutil.copyfile(path.parent / name, path.parent / f"{name}.then")
    journal.close()
    for name in ("journal.db", "journal.db-wal", "journal.db.lock"):
        shutil.move(path.parent / f"{name}.then", path.parent / name)
    return path


def copy(of: Path, to: Path) -> Path:
    """Copy the journal to another folder."""
    to.mkdir(exist_ok=True)
    for file in of.parent.iterdir():
        shutil.copyfile(file, to / file.name)
    return to / of.name


def check_the_rest(path: Path) -> list[Damage]:
    """Check that recovery returns each record unchanged or reports it as lost, and that the next start is clean."""
    with SqliteJournal(path) as journal:
        parts = list(journal.scan())
        numbers: list[int] = []
        for part in parts:
            if isinstance(part, Record):
                assert (part.now_s, part.facts) == RECORDS[part.seq - 1]
                numbers.append(part.seq)
            else:
                numbers += range(part.first, part.last + 1)
        assert numbers == list(range(1, COUNT + 1))
        damage = [part for part in parts if isinstance(part, Damage)]
        recovered = recover(journal, RULES)
        assert recovered.damage == tuple(damage)
        sound = {part.seq for part in parts if isinstance(part, Record)}
        assert set(recovered.state.jobs) == {str(seq) for seq in sound}
        journal.append(1000.0, RECORDS[0][1])
        assert journal.last_seq == COUNT + 1
    with SqliteJournal(path, strict=True) as journal:
        assert journal.repair_reason == ""
        again = recover(journal, RULES, strict=True)
        assert again.damage == ()
        assert again.from_snapshot in (COUNT, None)
    return damage


def test_sound_files_give_no_damage(closed: Path, killed: Path, tmp_path: Path) -> None:
    """Sound files, closed or left by a killed process, have no damage to report."""
    for sound in (closed, killed):
        assert check_the_rest(copy(sound, tmp_path / sound.parent.name)) == []


@pytest.mark.parametrize(("which", "ending"), [("closed", ""), ("killed", ""), ("killed", "-wal")])
def test_truncated_at_every_page(which: str, ending: str, closed: Path, killed: Path, tmp_path: Path) -> None:
    """Cut at a page or within one, the journal has the records before the cut, and reports the others."""
    sound = closed if which == "closed" else killed
    file = sound.parent / f"journal.db{ending}"
    size = file.stat().st_size
    step = max(PAGE // 2, size // 20 // 512 * 512)
    for size_left in range(0, size, step):
        path = copy(sound, tmp_path / str(size_left))
        with open(path.parent / file.name, "r+b") as cut:
            cut.truncate(size_left)
        damage = check_the_rest(path)
        # A cut within the last page may come after its last record.
        assert damage or size - size_left < PAGE
    # The last cut, near the end of the file, costs few records.
    assert sum(part.lost for part in damage) <= COUNT // 4


@pytest.mark.parametrize("which", ["closed", "killed"])
def test_flipped_bits(which: str, closed: Path, killed: Path, tmp_path: Path) -> None:
    """A flipped bit anywhere in the database or the log costs at most the records of one page."""
    chance, sound = random.Random(11), closed if which == "closed" else killed
    trials_with_loss = 0
    for trial in range(30):
        path = copy(sound, tmp_path / str(trial))
        file = path.with_name(path.name + chance.choice(["", "-wal"] if which == "killed" else [""]))
        content = bytearray(file.read_bytes())
        at = chance.choice(
            [chance.randrange(len(content)), chance.randrange(PAGE), chance.randrange(len(content))]
        )
        content[at] ^= 1 << chance.randrange(8)
        file.write_bytes(content)
        lost = sum(part.lost for part in check_the_rest(path))
        assert lost <= 15, f"bit flipped at {at} of {file.name}"
        trials_with_loss += lost > 0
    assert trials_with_loss > 3


@pytest.mark.parametrize("which", ["closed", "killed"])
def test_zeroed_blocks(which: str, closed: Path, killed: Path, tmp_path: Path) -> None:
    """Zeros over a disk block or a page cost at most 30 records."""
    chance, sound = random.Random(13), closed if which == "closed" else killed
    for trial in range(20):
        path = copy(sound, tmp_path / str(trial))
        file = path.with_name(path.name + chance.choice(["", "-wal"] if which == "killed" else [""]))
        size = chance.choice([512, PAGE])
        at = chance.randrange(file.stat().st_size // size) * size if trial else 0
        with open(file, "r+b") as zeroed:
            zeroed.seek(at)
            zeroed.write(b"\0" * size)
        lost = sum(part.lost for part in check_the_rest(path))
        assert lost <= 30, f"{size} bytes at {at} of {file.name}"


def test_a_missing_log_is_noticed(killed: Path, tmp_path: Path, wording: Wording) -> None:
    """A copy without the log looks sound to SQLite, but the lock file has the number of the last record."""
    path = copy(killed, tmp_path / "copy")
    (path.parent / "journal.db-wal").unlink()
    (damage,) = check_the_rest(path)
    assert (damage.first, damage.last) == (COUNT // 2 + 1, COUNT)
    assert re.findall(r"\d+", damage.why) == [str(COUNT // 2), str(COUNT)]
    wording(damage.why)


def test_the_damaged_file_is_kept(closed: Path, tmp_path: Path) -> None:
    """A repair keeps the damaged file, unchanged, in the folder of the new one."""
    path = copy(closed, tmp_path / "copy")
    content = bytearray(path.read_bytes())
    content[PAGE : 3 * PAGE] = bytes(2 * PAGE)
    path.write_bytes(content)
    with SqliteJournal(path) as journal:
        assert journal.repair_reason != ""
    assert (path.parent / "journal.db.damaged-1").read_bytes() == bytes(content)


def test_strict_opening_repairs_nothing(closed: Path, tmp_path: Path, wording: Wording) -> None:
    """Strict opening raises DamagedJournal and leaves the file unchanged."""
    path = copy(closed, tmp_path / "copy")
    with open(path, "r+b") as cut:
        cut.truncate(5 * PAGE)
    before = path.read_bytes()
    with pytest.raises(DamagedJournal, match=r"journal\.db") as refused:
        SqliteJournal(path, strict=True)
    wording(refused.value, folder=path.parent)
    assert path.read_bytes() == before


def test_a_reader_gets_the_sound_records_and_repairs_nothing(killed: Path, tmp_path: Path) -> None:
    """A reader of a damaged journal gets its sound records, and changes no file."""
    path = copy(killed, tmp_path / "copy")
    log = path.parent / "journal.db-wal"
    content = bytearray(log.read_bytes())
    content[20 * PAGE] ^= 1
    log.write_bytes(content)
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    with SqliteJournal(path, read_only=True) as journal:
        assert recover(journal, RULES).lost_records < 10
        assert journal.repair_reason != ""
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


def test_a_repair_can_be_interrupted(closed: Path, tmp_path: Path) -> None:
    """If a process dies during a repair, the next process continues with the files that were left."""
    for trial, name in enumerate(("journal.db.mending", "journal.db.mended")):
        path = copy(closed, tmp_path / str(trial))
        shutil.copyfile(path, path.parent / name)
        with open(path, "r+b") as cut:
            cut.truncate(5 * PAGE)
        damage = check_the_rest(path)
        assert (damage == []) == name.endswith("mended")


def test_an_emptied_file_has_lost_all_records(closed: Path, tmp_path: Path) -> None:
    """An emptied file is reported to have lost all its records, and numbering continues."""
    path = copy(closed, tmp_path / "copy")
    path.write_bytes(b"")
    (damage,) = check_the_rest(path)
    assert (damage.first, damage.last) == (1, COUNT)


def test_a_damaged_lock_file_is_ignored(closed: Path, tmp_path: Path) -> None:
    """Random bytes in the lock file are not taken for a number of missing records."""
    path = copy(closed, tmp_path / "copy")
    (path.parent / "journal.db.lock").write_bytes(b"\xff" * 16)
    assert check_the_rest(path) == []


def test_records_over_many_pages_are_salvaged(tmp_path: Path) -> None:
    """Records over several pages are recovered from the database and from the log."""
    path = tmp_path / "journal.db"
    with write(path, HUGE, durable=True) as journal:
        journal.write_snapshot(2, b"two" * 10_000)
        journal.set_meta("made_by", "a test")
        for name in ("journal.db", "journal.db-wal", "journal.db.lock"):
            shutil.copyfile(tmp_path / name, tmp_path / f"{name}.then")
    for name in ("journal.db", "journal.db-wal", "journal.db.lock"):
        shutil.move(tmp_path / f"{name}.then", tmp_path / name)
    with open(path, "r+b") as zeroed:
        zeroed.write(bytes(100))
    with SqliteJournal(path) as journal:
        assert "not a database" in journal.repair_reason
        assert [(record.now_s, record.facts) for record in journal.records()] == HUGE
        assert latest_snapshot(journal) == (2, b"two" * 10_000)
        assert journal.meta == {"format": "1", "made_by": "a test"}


def test_random_bytes_are_not_a_journal(tmp_path: Path) -> None:
    """Random bytes, and pages that look like empty tables, raise NotAJournal."""
    chance = random.Random(17)
    for trial in range(20):
        path = tmp_path / f"{trial}.db"
        pages = bytearray(chance.randbytes(5 * PAGE))
        for at in range(0, len(pages), PAGE):
            pages[at] = 0x0D
        path.write_bytes(pages)
        with pytest.raises(NotAJournal):
            SqliteJournal(path)
