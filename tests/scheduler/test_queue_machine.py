"""Any steps in any order lose nothing, double nothing, and keep the order. `python -m benchmarks.queue_machine` does
more of them."""

from __future__ import annotations

from benchmarks import queue_machine


def test_the_queues_do_what_their_model_does(redis_url, redis_client):
    queue_machine.run(redis_url, examples=60)
    assert queue_machine.QueueMachine.popped > 30
    assert queue_machine.QueueMachine.restored > 10
