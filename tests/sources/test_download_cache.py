"""Downloads of several threads at a time."""

from __future__ import annotations

import hashlib
from io import BytesIO
from pathlib import Path
from threading import Thread

from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.sources.download_cache import DownloadCache


def test_files_that_threads_download_at_once_are_each_whole(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    cache, others = DownloadCache(tmp_path / "files", Memo(tmp_path / "memo.db")), list[str]()

    class Slow(BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell():  # between two pieces of this one, another thread downloads all of its own
                thread = Thread(target=lambda: others.append(cache.add(BytesIO(b"another"))))
                thread.start()
                thread.join()
            return super().read(3)

    digests = [cache.add(Slow(b"mine")), *others]
    wanted = [f"sha256:{hashlib.sha256(content).hexdigest()}" for content in (b"mine", b"another", b"another")]
    assert digests == wanted and all(map(cache.has, digests))
    assert len([*(tmp_path / "files").iterdir()]) == 2, "nothing else is left"
