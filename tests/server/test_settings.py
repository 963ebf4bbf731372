"""Where settings come from and which one wins."""

from __future__ import annotations

import pytest

from aotlm.errors import ServeError
from aotlm_server.cli import main, parser
from aotlm_server.serving import bind
from aotlm_server.settings import Settings, load_settings


def test_flags_win_over_environment_over_defaults() -> None:
    environment = {"AOTLM_PORT": "9000", "AOTLM_HOST": "0.0.0.0", "AOTLM_UNRELATED": "x"}
    settings = load_settings({"port": "9001", "host": None}, environment)
    assert (settings.port, settings.host, settings.stream_interval) == (9001, "0.0.0.0", 1)
    assert load_settings({}, {}) == Settings()
    assert load_settings({}, {"AOTLM_PORT": ""}) == Settings()


@pytest.mark.parametrize(
    ("flags", "environment", "named"),
    [
        ({"port": "x"}, {}, "--port"),
        ({"port": "70000"}, {"AOTLM_PORT": "1"}, "--port"),
        ({}, {"AOTLM_PORT": "-1"}, "AOTLM_PORT"),
        ({"log_format": "xml"}, {}, "--log-format"),
        ({"default_temperature": "3"}, {}, "--default-temperature"),
        ({"stream_interval": "0"}, {}, "--stream-interval"),
        ({"max_batch_size": "0"}, {}, "--max-batch-size"),
        ({"default_top_k": str(2**31)}, {}, "--default-top-k"),
        ({"max_tokens": str(2**31)}, {}, "--max-tokens"),
        ({"max_tokens": "9" * 5000}, {}, "--max-tokens"),
        ({"grace_period": "inf"}, {}, "--grace-period"),
        ({"grace_period": "-1"}, {}, "--grace-period"),
        ({}, {"AOTLM_GRACE_PERIOD": "nan"}, "AOTLM_GRACE_PERIOD"),
    ],
)
def test_bad_values_are_named(
    flags: dict[str, str], environment: dict[str, str], named: str
) -> None:
    with pytest.raises(ServeError, match=rf"^{named}: .*got") as caught:
        load_settings(flags, environment)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["default_temperature", "default_top_p", "grace_period"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_only_finite_numbers(name: str, value: str) -> None:
    with pytest.raises(ServeError, match=f"finite number, got '{value}'$"):
        load_settings({name: value}, {})


def test_the_largest_values() -> None:
    settings = load_settings({"default_top_k": str(2**31 - 1), "max_tokens": str(2**31 - 1)}, {})
    assert settings.default_top_k == settings.max_tokens == 2**31 - 1


def test_every_setting_has_a_flag() -> None:
    flags = vars(parser().parse_args(["model"]))
    assert set(flags) - {"target"} == set(Settings.model_fields)


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    assert "examples:" in capsys.readouterr().out


def test_port_in_use_is_found_before_compiling(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aotlm_server.compiling.find_or_compile", _never)
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert main(["no-such-model", "--port", str(port)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"port {port}" in error


def test_bad_flag_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "--port", "many"]) == 2  # as argparse's own complaints
    error = capsys.readouterr().err
    assert error.startswith("error: --port: ")
    assert error.count("\n") == 1


async def _never(target: str) -> None:
    raise AssertionError(f"compiled {target} although the port is in use")
