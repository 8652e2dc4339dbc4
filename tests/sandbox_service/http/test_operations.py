"""What operators read: readiness, and a log of one JSON object a line."""

import json

from sandbox_service.server.log import log


def test_ready_is_200_while_it_serves(service):
    response = service.http.get("/ready")
    assert (response.status_code, response.json()) == (200, {"ready": True})
    assert service.http.get("/v1/ping").json() == "pong"


def test_each_event_is_one_line_of_json(capfd):
    log("lane_died", lane=3, reason="two\nlines, ünïcode")
    log("stopped")
    first, second = capfd.readouterr().err.splitlines()
    event = json.loads(first)
    assert event.pop("time") > 1.6e9  # seconds since the epoch
    assert event == {"event": "lane_died", "lane": 3, "reason": "two\nlines, ünïcode"}
    assert json.loads(second)["event"] == "stopped"
