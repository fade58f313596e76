"""Addresses in settings hold no login, because logs and errors show them."""

import pytest
from pydantic import ValidationError

from spark_source.settings import SourceSettings


@pytest.mark.parametrize(
    "settings",
    [
        {"http_url": "http://ann:zq-password@agent:8080"},
        {"http_url": "http://a:8080,http://ann:zq-password@b:8080"},
        {"http_url": "ann:zq-password@agent:8080"},
        {"store_url": "s3://key:zq-password@bucket/prefix"},
        {"store_url": "s3://bucket/prefix?endpoint=http://key:zq-password@store:9000"},
    ],
)
def test_an_address_with_a_login_is_refused_and_not_shown(settings: dict[str, str]) -> None:
    with pytest.raises(ValidationError) as refused:
        SourceSettings.model_validate(settings)

    assert "no password" in str(refused.value)
    assert "zq-password" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["s3://bucket/a@b?endpoint=http://store:9000", "file:///data@home/store", "s3://bucket"]
)
def test_a_path_may_have_any_sign(url: str) -> None:
    assert SourceSettings(store_url=url).store_url == url
