"""Addresses as users and peers write them."""

from __future__ import annotations

import pytest

from aicpnode.errors import MalformedError, UserError
from aicpnode.network.peers import Address, as_seen_from


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:7777", "127.0.0.1", 7777),
        (" node.example.org:1 ", "node.example.org", 1),
        ("LocalHost:65535", "localhost", 65535),
        ("[::1]:7777", "::1", 7777),
        ("[fe80::1%eth0]:7777", "fe80::1%eth0", 7777),
    ],
)
def test_address_parses_and_prints_back(text, host, port):
    address = Address.parse(text)
    assert (address.host, address.port) == (host, port)
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7777",
        "host",
        "host:",
        ":7777",
        "host:0",
        "host:65536",
        "host:-1",
        "host:7x",
        "::1:7777",
        "a b:1",
        "ü:1",
        "h:٣",
    ],
)
def test_what_is_no_address_is_the_users_error_with_advice(text):
    with pytest.raises(UserError, match="HOST:PORT"):
        Address.parse(text)


@pytest.mark.parametrize("text", ["example.org:80", "127.0.0.1", "1.2.3.4:0", "999.1.1.1:5"])
def test_peers_tell_ip_addresses_only(text):
    with pytest.raises(MalformedError):
        Address.from_peer(text)


def test_loopback_told_by_another_machine_means_that_machine():
    told = Address("127.0.0.1", 7001)
    assert as_seen_from(told, "10.0.0.2") == Address("10.0.0.2", 7001)
    assert as_seen_from(told, "127.0.0.1") == told
    assert as_seen_from(Address("10.0.0.9", 1), "127.0.0.1") == Address("10.0.0.9", 1)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "224.0.0.1", "ff02::1"])
def test_addresses_of_nobody_in_particular_mean_nothing(host):
    assert as_seen_from(Address(host, 1), "10.0.0.2") is None


@pytest.mark.parametrize(
    ("host", "expected"), [("127.0.0.9", True), ("::1", True), ("localhost", True), ("8.8.8.8", False)]
)
def test_loopback_is_recognised(host, expected):
    assert Address(host, 1).is_loopback is expected
