import asyncio

import pytest

from sandbox_service.server.admission import Admission, Refused


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


async def hold(admission, client, order, release):
    async with admission.slot(client, 30) as slot:
        order.append(client)
        await release.wait()
        return slot


def test_clients_take_turns_whatever_they_have_waiting():
    """A burst of eight from one client does not make the two of another wait for all of it."""

    async def play():
        admission, order, release = Admission(["slot"], queue=20), [], asyncio.Event()
        clients = ["burst"] * 8 + ["other"] * 2
        tasks = []
        for client in clients:
            tasks.append(asyncio.create_task(hold(admission, client, order, release)))
            await asyncio.sleep(0)
        release.set()
        await asyncio.gather(*tasks)
        return order, admission

    order, admission = run(play())
    assert order == ["burst", "burst", "other", "burst", "other", *["burst"] * 5]
    assert (admission.waiting, admission.busy) == (0, 0)


def test_the_queue_is_bounded():
    async def play():
        admission, release = Admission(["a", "b"], queue=1), asyncio.Event()
        tasks = [asyncio.create_task(hold(admission, "c", [], release)) for _ in range(3)]
        await asyncio.sleep(0)
        assert (admission.busy, admission.waiting) == (2, 1)
        with pytest.raises(Refused) as refusal:
            admission.check(wait_s=60)
        release.set()
        await asyncio.gather(*tasks)
        admission.check(wait_s=60, requests=3)
        with pytest.raises(Refused):
            admission.check(wait_s=60, requests=4)
        return refusal.value

    assert run(play()).reason == "full"


def test_the_predicted_wait_is_weighed_against_the_deadline():
    """Four wait for one slot whose runs take 2 s: a fifth would wait 10 s."""

    async def play():
        admission, release = Admission(["a"], queue=10), asyncio.Event()
        for _ in range(200):
            admission.observe(2.0)
        tasks = [asyncio.create_task(hold(admission, "c", [], release)) for _ in range(5)]
        await asyncio.sleep(0)
        assert admission.predicted_wait_s() == pytest.approx(10.0, rel=1e-3)
        admission.check(wait_s=11)
        with pytest.raises(Refused) as refusal:
            admission.check(wait_s=9)
        release.set()
        await asyncio.gather(*tasks)
        return refusal.value

    refused = run(play())
    assert refused.reason == "deadline"
    assert refused.retry_after_s == pytest.approx(10.0, rel=1e-3)


def test_who_waits_too_long_is_refused_and_loses_no_slot():
    async def play():
        admission, release = Admission(["a"], queue=10), asyncio.Event()
        holder = asyncio.create_task(hold(admission, "c", [], release))
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="no slot became free"):
            async with admission.slot("c", 0.01):
                pass
        waiter = asyncio.create_task(hold(admission, "c", [], release))
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        release.set()
        await holder
        return admission.waiting, admission.busy

    assert run(play()) == (0, 0)


def test_stopping_refuses_all_that_wait_and_come():
    async def play():
        admission, release = Admission(["a"], queue=10), asyncio.Event()
        holder = asyncio.create_task(hold(admission, "c", [], release))
        waiter = asyncio.create_task(hold(admission, "c", [], release))
        await asyncio.sleep(0)
        admission.stop()
        with pytest.raises(Refused, match="stopping"):
            await waiter
        with pytest.raises(Refused, match="stopping"):
            admission.check(60)
        release.set()
        return await holder

    assert run(play()) == "a"
