"""A task that loses a cancellation is ended all the same."""

from __future__ import annotations

import asyncio
import contextlib

from specgen.controller.cancelling import stop


def test_a_task_that_swallows_cancellations_is_asked_again() -> None:
    async def scene() -> int:
        lost = 0

        async def stubborn() -> None:
            nonlocal lost
            while lost < 3:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    lost += 1
            await asyncio.sleep(60)

        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        await stop([task])
        assert task.cancelled()
        return lost

    assert asyncio.run(asyncio.wait_for(scene(), 10)) == 3


def test_finished_and_failing_tasks_are_no_trouble() -> None:
    async def scene() -> None:
        async def fails() -> None:
            raise ValueError("mine")

        tasks = [asyncio.create_task(asyncio.sleep(0)), asyncio.create_task(fails())]
        await asyncio.wait(tasks)
        await stop(tasks)
        with contextlib.suppress(ValueError):
            tasks[1].result()

    asyncio.run(scene())
