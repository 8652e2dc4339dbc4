import pytest

from sandbox_service.settings import Settings, SettingsError, read


def written(tmp_path, text):
    file = tmp_path / "config.toml"
    file.write_text(text)
    return str(file)


def test_the_command_line_is_above_the_file_and_the_file_above_the_defaults(tmp_path):
    text = "lanes = 3\nqueue = 9\n[limits]\nwall_s = 2\n[caps]\nmemory_mb = 1000\n"
    settings = read(written(tmp_path, text), lanes=5, queue=None)
    assert (settings.lanes, settings.queue) == (5, 9)
    assert (settings.limits.wall_s, settings.limits.cpu_s) == (2, 10.0)
    assert (settings.caps.memory_mb, settings.caps.wall_s) == (1000, 60.0)
    assert read(None) == Settings()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("lane = 1", "lane is no setting"),
        ("[limits]\nwall = 1", "limits.wall is no setting"),
        ("lanes = 'two'", "lanes='two'"),
        ("lanes = true", "lanes=True"),
        ("queue = -1", "queue=-1"),
        ("min_isolation = 'most'", "min_isolation='most'"),
        ("[limits]\nwall_s = 100", "limits.wall_s=100"),
        ("[caps]\nmemory_mb = 100", "caps.memory_mb=100"),
        ("= 1", "no TOML"),
    ],
)
def test_what_can_t_work_is_refused_by_name(tmp_path, text, named):
    with pytest.raises(SettingsError, match=named):
        read(written(tmp_path, text))
