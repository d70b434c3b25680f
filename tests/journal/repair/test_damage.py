"""Truncated, flipped and zeroed files (P11): the rest starts, and the report says what is missing, no more, no less."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from scheduler.journal.errors import Damage, DamagedJournal, NotAJournal
from scheduler.journal.record import Record
from scheduler.journal.replay import recover
from scheduler.journal.store import SqliteJournal
from tests.journal.samples import Told, told, write
from tests.journal.toy import RULES
from tests.support.journals import latest_snapshot

PAGE = 4096
COUNT = 200
RECORDS = told(COUNT, size_bytes=300)
HUGE: Told = [(1.0, facts) for _, facts in told(4, size_bytes=30_000)]


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
    """The same journal in another folder."""
    to.mkdir(exist_ok=True)
    for file in of.parent.iterdir():
        shutil.copyfile(file, to / file.name)
    return to / of.name


def check_the_rest(path: Path) -> list[Damage]:
    """Open and recover. Every record is there as it was or reported; nothing is both, and the next start is clean."""
    with SqliteJournal(path) as journal:
        found = list(journal.scan())
        seen: list[int] = []
        for part in found:
            if isinstance(part, Record):
                assert (part.now_s, part.facts) == RECORDS[part.seq - 1]
                seen.append(part.seq)
            else:
                seen += range(part.first, part.last + 1)
        assert seen == list(range(1, COUNT + 1))
        damage = [part for part in found if isinstance(part, Damage)]
        recovered = recover(journal, RULES)
        assert recovered.damage == tuple(damage)
        there = {part.seq for part in found if isinstance(part, Record)}
        assert set(recovered.state.jobs) == {str(seq) for seq in there}
        journal.append(1000.0, RECORDS[0][1])
        assert journal.last_seq == COUNT + 1
    with SqliteJournal(path, strict=True) as journal:
        assert journal.mended == ""
        again = recover(journal, RULES, strict=True)
        assert again.damage == ()
        assert again.from_snapshot in (COUNT, None)
    return damage


def test_nothing_is_reported_where_nothing_is_wrong(closed: Path, killed: Path, tmp_path: Path) -> None:
    """Sound files, closed or left by a killed process, give no damage."""
    for sound in (closed, killed):
        assert check_the_rest(copy(sound, tmp_path / sound.parent.name)) == []


@pytest.mark.parametrize(("which", "ending"), [("closed", ""), ("killed", ""), ("killed", "-wal")])
def test_truncated_at_every_page(which: str, ending: str, closed: Path, killed: Path, tmp_path: Path) -> None:
    """Cut anywhere, at a page or in the middle of one, what is before the cut is there and the rest is reported."""
    sound = closed if which == "closed" else killed
    file = sound.parent / f"journal.db{ending}"
    size = file.stat().st_size
    step = max(PAGE // 2, size // 20 // 512 * 512)
    for left in range(0, size, step):
        path = copy(sound, tmp_path / str(left))
        with open(path.parent / file.name, "r+b") as cut:
            cut.truncate(left)
        damage = check_the_rest(path)
        assert damage or size - left < PAGE  # of the last page, what matters may be before the cut
    lost = sum(found.lost for found in damage)  # the last cut takes little
    assert lost <= COUNT // 4


@pytest.mark.parametrize("which", ["closed", "killed"])
def test_flipped_bits(which: str, closed: Path, killed: Path, tmp_path: Path) -> None:
    """One bit anywhere in the database or the log costs the records that it is in, at most those of one page."""
    chance, sound = random.Random(11), closed if which == "closed" else killed
    hurt = 0
    for trial in range(30):
        path = copy(sound, tmp_path / str(trial))
        file = path.with_name(path.name + chance.choice(["", "-wal"] if which == "killed" else [""]))
        content = bytearray(file.read_bytes())
        at = chance.choice(
            [chance.randrange(len(content)), chance.randrange(PAGE), chance.randrange(len(content))]
        )
        content[at] ^= 1 << chance.randrange(8)
        file.write_bytes(content)
        lost = sum(found.lost for found in check_the_rest(path))
        assert lost <= 15, f"bit flipped at {at} of {file.name}"
        hurt += lost > 0
    assert hurt > 3


@pytest.mark.parametrize("which", ["closed", "killed"])
def test_zeroed_blocks(which: str, closed: Path, killed: Path, tmp_path: Path) -> None:
    """A block of zeros, of a disk's or a page's size, costs what was in it."""
    chance, sound = random.Random(13), closed if which == "closed" else killed
    for trial in range(20):
        path = copy(sound, tmp_path / str(trial))
        file = path.with_name(path.name + chance.choice(["", "-wal"] if which == "killed" else [""]))
        size = chance.choice([512, PAGE])
        at = chance.randrange(file.stat().st_size // size) * size if trial else 0
        with open(file, "r+b") as zeroed:
            zeroed.seek(at)
            zeroed.write(b"\0" * size)
        lost = sum(found.lost for found in check_the_rest(path))
        assert lost <= 30, f"{size} bytes at {at} of {file.name}"


def test_a_missing_log_is_noticed(killed: Path, tmp_path: Path) -> None:
    """A copy without the log looks sound to SQLite; the lock file knows better."""
    path = copy(killed, tmp_path / "copy")
    (path.parent / "journal.db-wal").unlink()
    (damage,) = check_the_rest(path)
    assert (damage.first, damage.last) == (COUNT // 2 + 1, COUNT)
    assert f"it ends at record {COUNT // 2}, but record {COUNT} had been written" in damage.why


def test_what_was_damaged_is_kept(closed: Path, tmp_path: Path) -> None:
    """Mending leaves the damaged file beside the new one, as it was."""
    path = copy(closed, tmp_path / "copy")
    content = bytearray(path.read_bytes())
    content[PAGE : 3 * PAGE] = bytes(2 * PAGE)
    path.write_bytes(content)
    with SqliteJournal(path) as journal:
        assert journal.mended != ""
    assert (path.parent / "journal.db.damaged-1").read_bytes() == bytes(content)


def test_strict_opening_mends_nothing(closed: Path, tmp_path: Path) -> None:
    """Who asks for it is told, and everything stays as it is."""
    path = copy(closed, tmp_path / "copy")
    with open(path, "r+b") as cut:
        cut.truncate(5 * PAGE)
    before = path.read_bytes()
    with pytest.raises(DamagedJournal, match=r"journal\.db is damaged: .*without 'strict' it is repaired"):
        SqliteJournal(path, strict=True)
    assert path.read_bytes() == before


def test_a_reader_sees_the_rest_and_mends_nothing(killed: Path, tmp_path: Path) -> None:
    """Looking at a damaged journal shows what there is, and changes no file."""
    path = copy(killed, tmp_path / "copy")
    log = path.parent / "journal.db-wal"
    content = bytearray(log.read_bytes())
    content[20 * PAGE] ^= 1
    log.write_bytes(content)
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    with SqliteJournal(path, read_only=True) as journal:
        assert recover(journal, RULES).lost_records < 10
        assert journal.mended != ""
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


def test_mending_can_be_interrupted(closed: Path, tmp_path: Path) -> None:
    """A process that dies while it mends leaves files from which the next one goes on."""
    for trial, name in enumerate(("journal.db.mending", "journal.db.mended")):
        path = copy(closed, tmp_path / str(trial))
        shutil.copyfile(path, path.parent / name)
        with open(path, "r+b") as cut:
            cut.truncate(5 * PAGE)
        damage = check_the_rest(path)
        assert (damage == []) == name.endswith("mended")


def test_everything_gone_is_a_start_from_nothing(closed: Path, tmp_path: Path) -> None:
    """An emptied file has lost all its records, and says so; numbering goes on."""
    path = copy(closed, tmp_path / "copy")
    path.write_bytes(b"")
    (damage,) = check_the_rest(path)
    assert (damage.first, damage.last) == (1, COUNT)


def test_a_damaged_lock_file_says_nothing(closed: Path, tmp_path: Path) -> None:
    """Nonsense in the lock file is not taken for records that are missing."""
    path = copy(closed, tmp_path / "copy")
    (path.parent / "journal.db.lock").write_bytes(b"\xff" * 16)
    assert check_the_rest(path) == []


def test_records_over_many_pages_are_salvaged(tmp_path: Path) -> None:
    """A record that spans pages is found again by following them, from the database and from the log."""
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
        assert "not a database" in journal.mended
        assert [(record.now_s, record.facts) for record in journal.records()] == HUGE
        assert latest_snapshot(journal) == (2, b"two" * 10_000)
        assert journal.meta == {"format": "1", "made_by": "a test"}


def test_noise_is_no_journal(tmp_path: Path) -> None:
    """Random bytes, and pages that look like tables of nothing, are refused in words."""
    chance = random.Random(17)
    for trial in range(20):
        path = tmp_path / f"{trial}.db"
        pages = bytearray(chance.randbytes(5 * PAGE))
        for at in range(0, len(pages), PAGE):
            pages[at] = 0x0D
        path.write_bytes(pages)
        with pytest.raises(NotAJournal):
            SqliteJournal(path)
