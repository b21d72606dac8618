"""A task that loses a cancellation is ended all the same."""

from __future__ import annotations

import asyncio
import contextlib

from specgen.controller.cancelling import finish, patiently, stop
from specgen.errors import PoolUnavailable


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


def test_cleaning_up_is_finished_however_often_the_caller_is_cancelled() -> None:
    async def scene() -> list[str]:
        done: list[str] = []

        async def cleanup() -> None:
            for step in ("streams", "lease", "scope"):
                await asyncio.sleep(0.05)
                done.append(step)

        async def work() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await finish(cleanup())

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        for _ in range(5):
            task.cancel()
            await asyncio.sleep(0.02)
        await asyncio.wait({task})
        assert task.cancelled()
        return done

    assert asyncio.run(scene()) == ["streams", "lease", "scope"]


def test_an_outage_is_waited_out() -> None:
    attempts = []

    async def call() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise PoolUnavailable("away")
        return "done"

    assert asyncio.run(patiently(call)) == "done"
    assert len(attempts) == 3
