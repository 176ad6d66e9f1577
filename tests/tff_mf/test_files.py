"""Files are written whole or not at all."""

import os
import stat

from tff_mf.base import files


def test_a_private_file_is_private_while_it_is_written(tmp_path):
    before = os.umask(0)
    try:
        with files.atomic_file(tmp_path / "file", mode=0o600) as file:
            assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
        files.write_atomically(tmp_path / "other", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "other").stat().st_mode) == 0o666


def test_content_is_on_disk_before_the_name_and_the_name_before_the_return(tmp_path, monkeypatch):
    path, steps = tmp_path / "file", []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor):
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else os.fstat(descriptor).st_size)
        fsync(descriptor)

    def renamed(source, target):
        steps.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    files.write_atomically(path, b"12345")
    assert steps == [5, "rename", "folder"]


def test_what_a_killed_process_left_is_deleted_and_not_what_one_is_writing(tmp_path):
    left = tmp_path / f".0{files._SUFFIX}"
    below = tmp_path / "below" / left.name
    below.parent.mkdir()
    with files.atomic_file(tmp_path / "file"):
        for path in (left, below):
            path.write_bytes(b"keys")
        (tmp_path / f".link{files._SUFFIX}").symlink_to(below)
        assert list(files.unfinished(tmp_path)) == [left]
        files.remove_unfinished(tmp_path)
        assert not left.exists()
        files.remove_unfinished(tmp_path, subfolders=True)
        assert not below.exists()
    assert (tmp_path / "file").exists()
