import pytest

from functions.settings import Settings


def test_an_empty_environment_means_an_instance_on_this_machine():
    assert Settings.from_environment({}) == Settings(urls=("http://127.0.0.1:8000",), timeout_ms=10_000)


def test_urls_are_separated_by_commas():
    settings = Settings.from_environment({"WARMPOOL_URLS": " http://127.0.0.1:1/, https://pool.example ,"})
    assert settings.urls == ("http://127.0.0.1:1", "https://pool.example")


def test_an_audience_is_the_url_of_a_service():
    settings = Settings.from_environment({"WARMPOOL_AUDIENCE": "https://pool.example", "GCE_METADATA_HOST": "host:80"})
    assert (settings.audience, settings.metadata_host) == ("https://pool.example", "host:80")


def test_every_limit_has_a_variable():
    settings = Settings.from_environment(
        {
            "WARMPOOL_TIMEOUT_MS": "1",
            "WARMPOOL_TIMEOUT_MS_MAX": "2",
            "WARMPOOL_PRIORITY": "5",
            "WARMPOOL_REQUEST_BYTES_MAX": "3",
            "WARMPOOL_RESPONSE_BYTES_MAX": "4",
        }
    )
    assert settings == Settings(timeout_ms=1, timeout_ms_max=2, priority=5, request_bytes_max=3, response_bytes_max=4)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WARMPOOL_URLS", ","),
        ("WARMPOOL_URLS", "127.0.0.1:8000"),
        ("WARMPOOL_URLS", "ftp://127.0.0.1"),
        ("WARMPOOL_URLS", "http://127.0.0.1/?a=b"),
        ("WARMPOOL_URLS", "http://user:password@127.0.0.1"),
        ("WARMPOOL_URLS", ",".join(["http://127.0.0.1"] * 65)),
        ("WARMPOOL_AUDIENCE", "http://pool.example"),
        ("WARMPOOL_AUDIENCE", "https://pool.example/?a=b"),
        ("GCE_METADATA_HOST", "http://metadata"),
        ("WARMPOOL_TIMEOUT_MS", "0"),
        ("WARMPOOL_TIMEOUT_MS", "-5"),
        ("WARMPOOL_TIMEOUT_MS", "1.5"),
        ("WARMPOOL_TIMEOUT_MS_MAX", "86400001"),
        ("WARMPOOL_PRIORITY", "8"),
        ("WARMPOOL_PRIORITY", "-1"),
        ("WARMPOOL_PRIORITY", "high"),
        ("WARMPOOL_REQUEST_BYTES_MAX", "9" * 5000),
        ("WARMPOOL_RESPONSE_BYTES_MAX", "lots"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(name, value):
    with pytest.raises(ValueError, match=f"^{name}: got .*; allowed: "):
        Settings.from_environment({name: value})
