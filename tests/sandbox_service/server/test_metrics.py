from sandbox_service.server.metrics import Metrics


def test_the_text_format():
    metrics = Metrics()
    metrics.count("runs", 1, endpoint="run", outcome="ok")
    metrics.count("runs", 2, endpoint="run", outcome="ok")
    metrics.observe("queue", 0.02)
    metrics.observe("queue", 100.0)
    lines = metrics.text({("lanes", ()): 4, ("tier", (("name", "strong"),)): 1}).splitlines()
    assert 'sandbox_runs_total{endpoint="run",outcome="ok"} 3' in lines
    assert "# TYPE sandbox_runs_total counter" in lines
    assert "sandbox_lanes 4" in lines and 'sandbox_tier{name="strong"} 1' in lines
    assert 'sandbox_queue_seconds_bucket{le="0.01"} 0' in lines
    assert 'sandbox_queue_seconds_bucket{le="0.025"} 1' in lines
    assert 'sandbox_queue_seconds_bucket{le="60.0"} 1' in lines
    assert 'sandbox_queue_seconds_bucket{le="+Inf"} 2' in lines
    assert "sandbox_queue_seconds_count 2" in lines
