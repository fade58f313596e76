"""Settings under which strangers could get in are refused."""

import pytest

from agent.security.sasl.settings import SaslSettings


@pytest.mark.parametrize("url", ["http://provider/keys", "ftp://provider/keys", "keys.json", "https://"])
def test_keys_come_from_https_or_a_file(url: str) -> None:
    with pytest.raises(ValueError, match="https"):
        SaslSettings(oauth_jwks=url)


@pytest.mark.parametrize("url", ["https://user:hunter2@x/keys", "https://hunter2@x/", "file://:hunter2@x/k"])
def test_the_address_of_keys_has_no_password(url: str) -> None:
    with pytest.raises(ValueError, match="no user and no password"):
        SaslSettings(oauth_jwks=url)


def test_oauthbearer_needs_issuer_audience_and_keys() -> None:
    with pytest.raises(ValueError, match="TIDELOG_OAUTH_AUDIENCE"):
        SaslSettings(sasl_mechanisms="OAUTHBEARER", oauth_jwks="https://x/keys", oauth_issuer="x")


def test_an_unknown_mechanism_is_refused() -> None:
    with pytest.raises(ValueError, match="GSSAPI"):
        SaslSettings(sasl_mechanisms="PLAIN,GSSAPI")


def test_a_failed_login_is_answered_before_its_connection_is_cut_off() -> None:
    with pytest.raises(ValueError, match="TIDELOG_SASL_TIMEOUT_S"):
        SaslSettings(sasl_timeout_s=1.0)
