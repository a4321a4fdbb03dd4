from __future__ import annotations

import pytest

from kafscale.api.configs.describe_user_scram_credentials import API
from kafscale.wire.error_codes import DUPLICATE_RESOURCE, NONE, RESOURCE_NOT_FOUND
from kafscale.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from tests.devtools.handlers import ask, some_services


@pytest.mark.parametrize("users", [None, []])
async def test_there_are_no_users(users: list[UserName] | None) -> None:
    response = await ask(API, some_services(), DescribeUserScramCredentialsRequest(users=users))
    assert (response.error_code, response.error_message, response.results) == (NONE, None, [])


async def test_no_user_that_is_named_exists() -> None:
    request = DescribeUserScramCredentialsRequest(users=[UserName(name=name) for name in ("a", "b", "b", "c", "b")])
    results = (await ask(API, some_services(), request)).results
    assert {each.user: each.error_code for each in results} == {
        "a": RESOURCE_NOT_FOUND,
        "b": DUPLICATE_RESOURCE,
        "c": RESOURCE_NOT_FOUND,
    }
    assert len(results) == 3
    assert results[0].error_message == "Attempt to describe a user credential that does not exist: a"
    assert results[1].error_message == (
        "Cannot describe SCRAM credentials for the same user twice in a single request: b"
    )
    assert all(each.credential_infos == [] for each in results)
