"""The page of settings says what the settings classes say."""

from spark_source.http_login import HttpLoginSettings
from storage.settings import Settings
from tests.test_tidy import PACKAGES
from tidelog.configuration_page import PAGE, PARTS, document


def test_the_page_is_as_the_settings_say() -> None:
    assert PAGE.read_text() == document(), "docs/configuration.md is stale: run `make docs`"


def test_every_settings_class_is_on_the_page() -> None:
    def below(kind: type[Settings]) -> set[type[Settings]]:
        return {one for direct in kind.__subclasses__() for one in (direct, *below(direct))}

    ours = {one for one in below(Settings) if one.__module__.partition(".")[0] in PACKAGES}

    assert ours - {HttpLoginSettings} == {model for _, model in PARTS}, "it is a part of others"


def test_every_setting_says_what_it_is_for() -> None:
    silent = [
        line for line in document().splitlines() if line.startswith("| `TIDELOG_") and line.endswith("|  |")
    ]

    assert silent == []
