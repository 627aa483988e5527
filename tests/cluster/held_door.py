"""A TCP door before an engine that can hold one kind of ask: `python held_door.py PORT TARGET_PORT MARK FOLDER`.

While `FOLDER/hold` exists, what a client sends is kept as soon as MARK was in it, and `FOLDER/held` has a line for each
such ask. All else passes, answers too. It runs on the engine's machine; the gateway knows only the door.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from pathlib import Path

LOOK_S = 0.02


class Door:
    def __init__(self, target_port: int, mark: bytes, folder: Path) -> None:
        self._target_port, self._mark, self._folder = target_port, mark, folder
        self._held: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client: its connection to the engine is made with its ask, as engines close idle ones soon."""
        passing: asyncio.Task[None] | None = None
        with contextlib.suppress(OSError):
            engine: asyncio.StreamWriter | None = None
            while data := await self._ask(reader, writer):
                if engine is None or engine.is_closing() or (passing is not None and passing.done()):
                    answers, engine = await asyncio.open_connection("127.0.0.1", self._target_port)
                    passing = asyncio.create_task(self._pass(answers, engine, writer))
                engine.write(data)
                await engine.drain()
        if passing is not None:
            passing.cancel()
            await asyncio.gather(passing, return_exceptions=True)
        writer.close()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """A whole one, once it may go on; empty: the client has left."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            data = head + (await reader.readexactly(int(length[1])) if length else b"")
        except asyncio.IncompleteReadError:
            return b""
        if self._mark in data and (self._folder / "hold").exists():
            with (self._folder / "held").open("a") as held:
                held.write("held\n")
            self._held.add(writer)
            for _held in iter((self._folder / "hold").exists, False):
                await asyncio.sleep(LOOK_S)
            self._held.discard(writer)
        return data

    async def _pass(
        self, answers: asyncio.StreamReader, engine: asyncio.StreamWriter, writer: asyncio.StreamWriter
    ) -> None:
        """Until the engine ends the connection: its client has to see that, but for one whose ask is held."""
        try:
            while data := await answers.read(2**16):
                writer.write(data)
                await writer.drain()
        finally:
            engine.close()
            if writer not in self._held:
                writer.close()


async def main(port: int, target_port: int, mark: str, folder: str) -> None:
    door = Door(target_port, mark.encode(), Path(folder))
    async with await asyncio.start_server(door.serve, "0.0.0.0", port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]))
