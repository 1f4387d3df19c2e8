"""Random reads, writes, truncations, mappings, syncs and reopenings of one file, held against bytes in
memory: fsx.py FILE SEED OPERATIONS MAX_BYTES."""

import mmap
import os
import random
import sys


class Fsx:
    def __init__(self, path, seed, maximum):
        self.path = path
        self.random = random.Random(seed)
        self.maximum = maximum
        self.model = bytearray()
        self.log = []
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)

    def range(self):
        offset = self.random.randrange(self.maximum)
        length = self.random.choice([1, 100, 5_000, 70_000, 600_000])
        length = self.random.randint(1, length)
        return offset, min(length, self.maximum - offset)

    def grow(self, end):
        if end > len(self.model):
            self.model.extend(bytes(end - len(self.model)))

    def compare(self, got, offset, what):
        expected = bytes(self.model[offset : offset + len(got)])
        if got != expected:
            first = next(i for i, (a, b) in enumerate(zip(got, expected)) if a != b)
            tail = "\n".join(self.log[-30:])
            sys.exit(f"{what} at {offset + first}: {got[first]} and not {expected[first]}\n{tail}")

    def write(self):
        offset, length = self.range()
        self.log.append(f"write {offset}+{length}")
        data = self.random.randbytes(length)
        done = 0
        while done < length:
            done += os.pwrite(self.fd, data[done:], offset + done)
        self.grow(offset + length)
        self.model[offset : offset + length] = data

    def read(self):
        offset, length = self.range()
        self.log.append(f"read {offset}+{length}")
        got = os.pread(self.fd, length, offset)
        due = max(0, min(length, len(self.model) - offset))
        if len(got) != due:
            tail = "\n".join(self.log[-30:])
            sys.exit(f"read {offset}+{length} brought {len(got)} bytes, not {due}\n{tail}")
        self.compare(got, offset, "read")

    def truncate(self):
        size = self.random.randrange(self.maximum)
        self.log.append(f"truncate {len(self.model)} to {size}")
        os.ftruncate(self.fd, size)
        self.grow(size)
        del self.model[size:]

    def map(self):
        offset, length = self.range()
        length = min(length, len(self.model) - offset)
        if length <= 0:
            return
        start = offset - offset % mmap.ALLOCATIONGRANULARITY
        writes = self.random.random() < 0.5
        self.log.append(f"map {offset}+{length} {'write' if writes else 'read'}")
        with mmap.mmap(self.fd, offset + length - start, mmap.MAP_SHARED, offset=start) as view:
            at = offset - start
            if writes:
                data = self.random.randbytes(length)
                view[at : at + length] = data
                self.model[offset : offset + length] = data
                view.flush()
            else:
                self.compare(view[at : at + length], offset, "mapped read")

    def sync(self):
        self.log.append("fsync")
        os.fsync(self.fd)

    def reopen(self):
        self.log.append("close and open")
        os.close(self.fd)
        size = os.stat(self.path).st_size
        if size != len(self.model):
            tail = "\n".join(self.log[-30:])
            sys.exit(f"after a close the file has {size} bytes, not {len(self.model)}\n{tail}")
        self.fd = os.open(self.path, os.O_RDWR)

    def run(self, operations):
        steps = [self.write] * 8 + [self.read] * 8 + [self.map] * 3
        steps += [self.truncate, self.sync, self.reopen]
        for _ in range(operations):
            self.random.choice(steps)()
        self.reopen()
        with open(self.path, "rb") as file:
            self.compare(file.read(), 0, "the whole file")
        os.close(self.fd)


if __name__ == "__main__":
    path, seed, operations, maximum = sys.argv[1], *map(int, sys.argv[2:5])
    Fsx(path, seed, maximum).run(operations)
