"""JAX's own compilation caches of many machines, shared through a store.

JAX loads whatever lies in its folder: nothing in an entry is unpickled, but it is an executable of PJRT, which on a CPU
is an ELF file of machine code. So who can write an entry can run code in every job that finds it, and entries travel as
signed artifacts, which are verified before anything of them is written:

    jax-cache/<readers>/<key>    artifact of the kind "jax-cache"

The key is made of the entry's name and of what else decides who can use it (`JaxCache.readers`), which is one folder
each. The same key is the same compile: entries never change, and it does no harm if two jobs store one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from cache.artifact import Header, pack, unpack
from cache.errors import CacheError, Damaged, Foreign, NotStored, Untrusted
from cache.ingredients import differences, digest_ingredients
from cache.jax_cache import Entries, JaxCache, is_name
from cache.signed_store import SignedStore
from cache.verification import set_aside

FOLDER = "jax-cache"

_AT_ONCE = 8


@dataclass(slots=True)
class Pulled:
    """What a pull did.

    Attributes:
        new: Names of entries that were not there.
        mended: Names of entries that were torn, and are whole now.
        refused: What nobody who is trusted has signed, or what is no entry of JAX's; path to reason.
        damaged: What is not whole in the store; path to reason.
    """

    new: list[str] = field(default_factory=list)
    mended: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)


class JaxCacheSync:
    """A folder and a store. Methods raise StoreUnavailable for either; what was done until then stays, and is whole.

    Args:
        store: Where entries are shared.
        cache: JAX's folder.
        found: What the folder holds; kept up to date here.
    """

    def __init__(self, store: SignedStore, cache: JaxCache, found: Entries) -> None:
        self.store = store
        self.cache = cache
        self.found = found
        self._folder = f"{FOLDER}/{digest_ingredients(cache.readers)[:16]}"

    def path_of(self, name: str) -> str:
        """Where an entry lies in the store."""
        return f"{self._folder}/{digest_ingredients(self._ingredients(name))}"

    def missing(self) -> list[str]:
        """Paths of what the store has, and the folder has not or has torn."""
        held = {self.path_of(name) for name in self.found.whole | self.found.other}
        return [path for path in self._stored() if path not in held]

    def pull(self, paths: Iterable[str], step: Callable[[], None]) -> Pulled:
        """Write entries of the store into the folder; `step` is called for each."""
        done = Pulled()
        paths = list(paths)
        for path, result in zip(paths, _each(self._pulled, paths, step), strict=True):
            match result:
                case Damaged():
                    done.damaged[path] = result.reason
                case CacheError():
                    done.refused[path] = str(result)
                case str():
                    (done.mended if self.found.torn.pop(result, None) else done.new).append(result)
                    self.found.whole.add(result)
        return done

    def unpushed(self) -> list[str]:
        """Names of whole entries that the store has not."""
        stored = set(self._stored())
        return sorted(name for name in self.found.whole if self.path_of(name) not in stored)

    def push(self, names: Iterable[str], step: Callable[[], None]) -> list[str]:
        """Store entries; the names of those that were still there, whole. Raises Untrusted without a key that signs."""
        names = list(names)
        pushed = _each(self._pushed, names, step)
        return [name for name, done in zip(names, pushed, strict=True) if done]

    def set_aside(self, damaged: dict[str, str]) -> list[str]:
        """Quarantine what is damaged in the store, so that it is stored anew; the paths that were."""
        return [path for path, reason in damaged.items() if set_aside(self.store, path, reason)]

    def remove_torn(self) -> list[str]:
        """Remove torn entries, which JAX then writes anew; the names of those that are surely not being written now."""
        removed = [name for name in sorted(self.found.torn) if self.cache.remove_torn(name)]
        for name in removed:
            del self.found.torn[name]
        return removed

    def _stored(self) -> list[str]:
        return [f"{self._folder}/{key}" for key in self.store.names(self._folder)]

    def _pulled(self, path: str) -> str | CacheError | None:
        """The name of an entry that is in the folder now, or what is wrong with it; None if it is gone."""
        try:
            name, data = self._verified(path)
        except NotStored:
            return None
        except (Damaged, Foreign, Untrusted) as error:
            return error
        self.cache.write(name, data)
        return name

    def _verified(self, path: str) -> tuple[str, bytes]:
        """Name and content of an entry in the store."""
        key = path.rpartition("/")[2]
        header, payload = unpack(self.store.get(path), key=key, trust=self.store.trust, kind="jax-cache")
        name = header.ingredients.get("name", "")
        ingredients = self._ingredients(name)
        if differ := differences(ingredients, header.ingredients):
            raise Foreign(repr(path), differ)
        if self.path_of(name) != path:
            raise Foreign(repr(path), {"key": (self.path_of(name).rpartition("/")[2], key)})
        if not is_name(name):
            raise Foreign(repr(path), {"name": ("that of a file", name)})
        data = bytes(payload)
        if (fault := self.cache.fault(name, data)) != "":
            raise Damaged(repr(path), fault or "it is compressed otherwise than it says")
        return name, data

    def _pushed(self, name: str) -> bool:
        try:
            data = self.cache.read(name)
        except NotStored:  # evicted meanwhile
            return False
        if self.cache.fault(name, data) != "":
            return False
        ingredients = self._ingredients(name)
        header = Header(key=digest_ingredients(ingredients), kind="jax-cache", ingredients=ingredients)
        self.store.put(self.path_of(name), pack(header, data))
        return True

    def _ingredients(self, name: str) -> dict[str, str]:
        return {"name": name, **self.cache.readers}


def _each[A, R](work: Callable[[A], R], arguments: list[A], step: Callable[[], None]) -> list[R]:
    """The results in order, some computed at a time; the first error ends it all."""
    results = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            for result in pool.map(work, arguments):
                results.append(result)
                step()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return results
