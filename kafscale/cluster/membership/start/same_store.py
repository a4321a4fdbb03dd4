"""Which store a data directory belongs to, as its metadata says."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs
import trio

from kafscale.cluster.metadata.base import LOCAL_PREFIX, MetadataStore, Transaction
from kafscale.cluster.metadata.converter import decode, encode
from kafscale.config import Settings
from kafscale.errors import StartupError

STORE_KEY: Final = f"{LOCAL_PREFIX}store"


async def check_same_store(metadata: MetadataStore, settings: Settings) -> None:
    """Metadata and WAL go with one bucket: with another one, segments would be missing. Raises StartupError."""
    url = settings.store
    if url.scheme == "file":
        url = attrs.evolve(url, path=Path(await trio.Path(url.path).absolute()))
    wanted = f"{url} {settings.s3_endpoint or ''} {settings.namespace}"
    entry = await metadata.get(STORE_KEY)
    if entry is None:
        await metadata.commit(Transaction(puts={STORE_KEY: encode(wanted)}, essential=True))
    elif (known := decode(str, entry.value)) != wanted:
        raise StartupError(
            f"--data-dir {settings.data_dir} belongs to the store '{known.strip()}', not to '{wanted.strip()}': "
            "give that --store, or another --data-dir"
        )
