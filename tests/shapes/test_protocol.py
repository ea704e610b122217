"""Headers, codes and rules of the protocol, one by one."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from evertide import __version__
from evertide.errors import InvalidInput
from evertide.pipeline.definition import AwayReason
from evertide.problem import ComponentState
from evertide.server.access import Access, Role, Token
from evertide.shapes.options import ShapeOptions
from tests.server.kit import until
from tests.shapes.kit import OPTIONS, Follower, Shop, order, shop

SECRET = "oh so ünsafe, this one"
WRONG: list[dict[str, Any]] = [{}, {"secret": ""}, {"secret": "oh"}, {"secret": SECRET.upper()}]
GUARDED = Access((Token.of("shapes", Role.READ, SECRET),))
PARAM: dict[str, Any] = {"params[1]": 1}
CORS = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "GET, POST, HEAD, DELETE, OPTIONS",
    "access-control-expose-headers": "electric-cursor,electric-handle,electric-has-data,electric-offset,"
    "electric-schema,electric-up-to-date,electric-internal-known-error,evertide-stale,retry-after",
    "electric-server": f"Evertide/{__version__}",
    "vary": "Origin",
}


def errors(s: Shop, **query: Any) -> dict[str, list[str]]:
    """The errors of a refused request."""
    answer = s.ask(**query)
    assert (answer.status, answer.body["message"]) == (400, "Invalid request"), answer
    assert (answer.headers["cache-control"], answer.headers["surrogate-control"]) == ("no-store", "no-store")
    assert CORS.items() <= answer.headers.items()
    found: dict[str, list[str]] = answer.body["errors"]
    return found


def test_errors_of_a_request_are_listed_by_parameter() -> None:
    with shop() as s:
        s.push(rows=[order(1)])
        assert errors(s) == {"table": ["can't be blank"], "offset": ["can't be blank"]}
        for offset in ("x", "1", "1_", "_1", "-2", "-1_0", "1_-1", "1_x", "99999999999999999999_0", "1_1_1", " 1_1"):
            assert errors(s, table="orders", offset=offset) == {"offset": ["has invalid format"]}, offset
        assert errors(s, table="orders", offset="0_0") == {"handle": ["can't be blank when offset != -1"]}
        assert errors(s, table="orders", offset="-1", live="") == {"live": ["can't be true when offset == -1"]}
        assert errors(s, table="orders", offset="now", live="true") == {"live": ["can't be true when offset == now"]}
        needs_live = {"live_sse": ["can't be true unless live is also true"]}
        assert errors(s, table="orders", offset="0_0", handle="h", live_sse="true") == needs_live
        assert errors(s, table="orders", offset="0_0", handle="h", experimental_live_sse="true") == needs_live
        assert [*errors(s, table="orders", offset="-1", replica="half")] == ["replica"]
        assert [*errors(s, table="orders", offset="-1", log="none")] == ["log"]
        assert [*errors(s, table="nothing", offset="-1")] == ["table"]
        assert [*errors(s, table="other.orders", offset="-1")] == ["table"]
        assert [*errors(s, table='"Orders"', offset="-1")] == ["table"]
        assert [*errors(s, table="a.b.c", offset="-1")] == ["table"]
        assert [*errors(s, table='""', offset="-1")] == ["table"]
        assert [*errors(s, table="orders", offset="-1", where="nope = 1")] == ["where"]
        assert [*errors(s, table="orders", offset="-1", where="id = $1")] == ["where"]
        assert [*errors(s, table="orders", offset="-1", columns="id,nope")] == ["columns"]
        assert [*errors(s, table="orders", offset="-1", columns="amount")] == ["columns"]  # the key is missing
        assert [*errors(s, table="orders", offset="-1", columns="id,,amount")] == ["columns"]
        assert [*errors(s, table="orders", offset="-1", queryable_columns="amount")] == ["queryable_columns"]


@pytest.mark.parametrize("table", ["orders", "Orders", "public.orders", '"orders"', '"public"."orders"', " orders "])
def test_a_table_is_found_under_every_way_of_writing_its_name(table: str) -> None:
    with shop() as s:
        s.push(rows=[order(1)])
        assert s.get(table).handle == s.get("orders").handle


def test_requests_with_the_same_meaning_share_a_shape() -> None:
    with shop() as s:
        s.push(rows=[order(1)])
        assert s.get(where="id=1 AND amount = 10").handle == s.get(where=" amount=10 and  id = 1").handle
        assert s.get(where="id = 1").handle == s.ask(table="orders", offset="-1", where="id = $1", **PARAM).handle
        assert s.get(columns="amount,id,customer").handle == s.get().handle
        assert s.get(columns="ID").handle == s.get(columns='"id"').handle == s.get(queryable_columns="id").handle
        others = [s.get(), s.get(columns="id"), s.get(where="id = 1"), s.get(replica="full"), s.get(log="changes_only")]
        assert len({one.handle for one in others}) == 5
        assert s.get(**{"cache-buster": "1", "expired_handle": "x", "unknown": "y"}).handle == s.get().handle
        assert s.get(handle="of-something-else").handle == s.get().handle  # with -1 it is for caches only


def test_cache_ages_are_settings() -> None:
    ages = replace(
        OPTIONS, snapshot_cache_s=1, snapshot_shared_cache_s=2, snapshot_stale_s=3, log_cache_s=4, log_stale_s=0,
        live_cache_s=0, live_stale_s=0,
    )  # fmt: skip
    with shop(options=ages) as s:
        s.push(rows=[order(1)])
        first = s.get()
        assert first.headers["cache-control"] == "public, max-age=1, s-maxage=2, stale-while-revalidate=3"
        log = s.get(offset="0_0", handle=first.handle)
        assert log.headers["cache-control"] == "public, max-age=4, must-revalidate"
        live = s.get(offset=log.offset, handle=first.handle, live="true")
        assert live.headers["cache-control"] == "public, max-age=0, must-revalidate"
        private = s.ask(table="orders", offset="-1", headers={"Authorization": "Bearer x"})
        assert private.headers["cache-control"] == "private, max-age=1, s-maxage=2, stale-while-revalidate=3"
    wrong: Any
    for wrong in (1.5, -1, "1"):
        with pytest.raises(InvalidInput, match="a whole number from 0 on"):
            replace(OPTIONS, log_cache_s=wrong)


def test_headers_of_every_kind_of_answer() -> None:
    with shop() as s:
        s.push(rows=[order(1)])
        first = s.get()
        handle = first.handle
        assert CORS.items() <= first.headers.items()
        assert first.headers["content-type"] == "application/json"
        assert first.headers["cache-control"] == (
            "public, max-age=604800, s-maxage=3600, stale-while-revalidate=2629746"
        )
        assert first.headers["electric-has-data"] == "true"
        assert first.headers["etag"] == f'"{handle}:-1:0_0"'
        assert "electric-cursor" not in first.headers
        assert json.loads(first.headers["electric-schema"]) == {
            "id": {"type": "int8", "not_null": True, "pk_index": 0},
            "customer": {"type": "text"},
            "amount": {"type": "int8"},
        }
        t = s.push(rows=[order(2)])
        log = s.get(offset="0_0", handle=handle)
        assert log.headers["cache-control"] == "public, max-age=60, stale-while-revalidate=300"
        assert log.headers["etag"] == f'"{handle}:0_0:{log.offset}"'
        assert (log.headers["electric-up-to-date"], "electric-schema" in log.headers) == ("", True)
        now = s.get(offset="now")
        assert now.headers["cache-control"] == "public, max-age=60, stale-while-revalidate=300"
        assert now.headers["etag"].startswith(f'"{handle}:now:{t + 1}_0:')
        live = s.get(offset=log.offset, handle=handle, live="true")
        assert live.headers["cache-control"] == "public, max-age=5, stale-while-revalidate=5"
        assert "electric-schema" not in live.headers
        assert int(live.headers["electric-cursor"]) % 20 == 0
        assert live.headers["etag"].startswith(f'"{handle}:{log.offset}:{log.offset}:')
        later = s.get(offset=log.offset, handle=handle, live="", cursor=live.headers["electric-cursor"])
        assert int(later.headers["electric-cursor"]) > int(live.headers["electric-cursor"])
        assert later.headers["etag"] != live.headers["etag"]
        assert s.get(offset=log.offset, handle=handle, live="false").headers["electric-schema"]
        page = s.ask(table="orders", offset="-1", headers={"Origin": "http://localhost:5173"})
        assert page.headers["access-control-allow-origin"] == "http://localhost:5173"


def test_an_answer_that_the_client_has_is_304() -> None:
    with shop() as s:
        s.push(rows=[order(1)])
        first = s.get()
        s.push(rows=[order(2)])
        assert s.get().headers["etag"] == first.headers["etag"]  # also after changes

        def known(tag: str, **query: Any) -> int:
            answer = s.ask(table="orders", headers={"If-None-Match": tag}, **query)
            assert answer.content == b"" if answer.status == 304 else answer.body
            return answer.status

        assert known(first.headers["etag"], offset="-1") == 304
        assert known(f'"a", W/{first.headers["etag"]}', offset="-1") == 304
        assert known('"a"', offset="-1") == 200
        log = s.get(offset="0_0", handle=first.handle)
        assert known(log.headers["etag"], offset="0_0", handle=first.handle) == 304
        s.push(rows=[order(3)])
        assert known(log.headers["etag"], offset="0_0", handle=first.handle) == 200
        end = Follower(s, {"table": "orders"}).caught_up()
        nothing = end.step()
        assert known(nothing.headers["etag"], offset=end.offset, handle=end.handle) == 200


def test_a_handle_of_another_shape_is_answered_with_the_right_one() -> None:
    with shop() as s:
        s.push(rows=[order(1)])
        right, other = s.get().handle, s.get(where="id = 1").handle
        for wrong in (other, "x", "x-1", "../../x-1", "-", f"{right}0", right.upper(), "é-1", "0" * 32 + "-1"):
            answer = s.get(offset="0_0", handle=wrong)
            assert (answer.status, answer.handle) == (409, right), wrong
            assert answer.body == [{"headers": {"control": "must-refetch"}}]
            assert answer.headers["cache-control"] == "public, max-age=60, must-revalidate"
            assert "electric-has-data" not in answer.headers
            assert "electric-up-to-date" not in answer.headers
            assert CORS.items() <= answer.headers.items()


def test_an_offset_beyond_the_log_waits_and_is_then_refused() -> None:
    with shop() as s:
        t = s.push(rows=[order(1)])
        handle = s.get().handle
        refused = errors(s, table="orders", offset=f"{t + 2}_0", handle=handle)
        assert refused == {"offset": ["out of bounds for this shape"]}
        assert s.get(offset=f"{t + 1}_99999", handle=handle).status == 200


def test_answers_to_head_options_and_other_methods() -> None:
    with shop(access=GUARDED) as s:
        s.push(rows=[order(1)])
        head = s.ask("HEAD", table="orders", offset="-1", secret=SECRET)
        assert (head.status, head.content, head.offset) == (200, b"", "0_0")
        asked = {
            "Access-Control-Request-Headers": "If-None-Match, X-Other,Authorization",
            "Origin": "https://a.example",
        }
        options = s.ask("OPTIONS", headers=asked)
        assert (options.status, options.content) == (204, b"")
        assert options.headers["access-control-max-age"] == "86400"
        assert options.headers["access-control-allow-headers"] == "if-none-match, authorization"
        assert options.headers["access-control-allow-origin"] == "https://a.example"
        assert "cache-control" not in options.headers
        assert s.ask("PUT", table="orders", offset="-1", secret=SECRET).status == 403
    with shop() as s:
        assert s.ask("PUT", table="orders", offset="-1").status == 404


def test_without_the_secret_no_spelling_of_the_address_is_answered() -> None:
    with shop(access=GUARDED) as s:
        s.push(rows=[order(1)])
        right: dict[str, Any] = {"table": "orders", "offset": "-1", "secret": SECRET}
        assert s.ask(**right).status == 200
        assert s.ask(**{**right, "secret": "", "api_secret": SECRET}).status == 200
        for path in (
            "/v1/shape",
            "/v1/%73hape",
            "/v1%2fshape",
            "/v1//shape",
            "//v1/shape",
            "/v1/./shape",
            "/v1/shape/",
        ):
            for given in WRONG:
                for method in ("GET", "HEAD", "POST", "DELETE"):
                    answer = s.ask(method, path, table="orders", offset="-1", **given)
                    assert answer.status in (401, 404, 307), (path, given, answer)
                    assert b"ann" not in answer.content
        answer = s.ask(headers={"Origin": "https://a.example"}, table="orders", offset="-1")
        assert (answer.status, answer.body["error_code"]) == (401, "unauthorized")
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        assert s.ask(path="/v1/%73hape", **right).status == 200
        assert s.ask(path="/v1/health").status == 200
    assert "ünsafe" not in repr(GUARDED)


def test_deleting_a_shape_ends_it() -> None:
    with shop(options=ShapeOptions(long_poll_s=0.1)) as s:
        s.push(rows=[order(1)])
        refused = s.ask("DELETE", table="orders")
        assert (refused.status, refused.body["message"]) == (405, "DELETE not allowed")
    with shop() as s:
        s.push(rows=[order(1)])
        first, other = s.get().handle, s.get(where="id = 1").handle
        assert s.ask("DELETE", handle=first).status == 202
        again = s.get(offset="0_0", handle=first)
        assert (again.status, again.handle != first) == (409, True)
        mixed = s.ask("DELETE", table="orders", handle=other)
        assert (mixed.status, [*mixed.body["errors"]]) == (400, ["handle"])
        gone = s.ask("DELETE", table="orders", where="id = 1")
        assert (gone.status, gone.content, gone.headers["cache-control"]) == (202, b"", "no-cache")
        assert CORS.items() <= gone.headers.items()
        queries: list[dict[str, Any]] = [{"handle": other}, {"table": "orders", "where": "id = 1"}, {"handle": "x"}]
        for query in queries:
            nothing = s.ask("DELETE", **query)
            assert (nothing.status, nothing.body) == (404, {"message": "No existing shape found"})
        assert s.ask("DELETE").status == 400


def test_requests_beyond_the_limit_get_retry_after() -> None:
    with shop(options=ShapeOptions(clients_max=1, long_poll_s=5)) as s:
        s.push(rows=[order(1)])
        client = Follower(s, {"table": "orders"}).caught_up()
        endpoint = s.service.endpoint
        endpoint._admission.clients = 1
        answer = s.get()
        assert (answer.status, answer.body["code"]) == (503, "concurrent_request_limit_exceeded")
        assert 6 <= int(answer.headers["retry-after"]) <= 10
        assert answer.headers["electric-internal-known-error"] == "true"
        endpoint._admission.clients = 0
        client.caught_up()
        assert (endpoint._admission.clients, endpoint._admission.new_clients) == (0, 0)


def test_a_hydrating_view_is_503_until_it_is_ready() -> None:
    with shop(options=replace(OPTIONS, long_poll_s=60)) as s:
        s.push(rows=[order(1)])
        runner = s.pipeline._runner
        there = runner.members
        away = AwayReason(ComponentState.HYDRATING, 1, "the view is computed from its tables", 0.0)
        view = msgspec.structs.replace(there.definition.views["revenue"], shard="", away=away)
        views = {**there.definition.views, "revenue": view}
        runner.members = there.move_to(msgspec.structs.replace(there.definition, views=views, change="not yet"))
        answer = s.get("revenue")
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        assert "the view is computed from its tables" in answer.body["message"]
        assert answer.headers["electric-internal-known-error"] == "true"
        assert s.get("orders").status == 200
        redefined = msgspec.structs.replace(
            there.definition.views["revenue"], away=msgspec.structs.replace(away, is_redefined=True)
        )
        views = {**there.definition.views, "revenue": redefined}
        runner.members = there.move_to(msgspec.structs.replace(there.definition, views=views, change="redefined"))
        answer = s.get("revenue")
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        assert "The query of the view 'revenue' changed" in answer.body["message"]
        runner.members = there
        first = s.get("revenue")
        assert len(first.changes) == 1
        with ThreadPoolExecutor(1) as threads:  # a client that waits when the query changes
            waiting = threads.submit(s.get, "revenue", offset="0_inf", handle=first.handle, live="true")
            until(lambda: any(shape.waiters for shape in s.service.shapes.live()))
            runner.members = there.move_to(msgspec.structs.replace(there.definition, views=views, change="again"))
            s.service.shapes.refresh_collections()
            assert waiting.result().status == 503
            runner.members = there


def test_the_answer_to_a_shape_of_a_failed_view_says_so() -> None:
    """Fails if a chunk of a snapshot says so: caches keep it for days."""
    stale = "view 'revenue' is failed, and its content is that of transaction 1"
    with shop() as s:
        s.push(rows=[order(1)])
        runner = s.pipeline._runner
        there = runner.members
        view = there.definition.views["revenue"]
        away = AwayReason(ComponentState.FAILED, 2, "division by zero", 0.0)
        views = {**there.definition.views, "revenue": msgspec.structs.replace(view, away=away)}
        first = s.get("revenue")
        rest = {"offset": first.offset, "handle": first.handle}
        assert "evertide-stale" not in s.get("revenue", **rest).headers
        runner.members = there.move_to(msgspec.structs.replace(there.definition, views=views, change="failed"))
        s.service.shapes.refresh_collections()
        for query in (rest, {"offset": "now"}, {**rest, "live": "true"}, {**rest, "live": "true", "live_sse": "true"}):
            answer = s.get("revenue", **query)
            assert (answer.status, answer.headers["evertide-stale"]) == (200, stale)
        subset = s.ask("GET", table="revenue", offset="now", log="changes_only", subset__where="true")
        assert (subset.status, subset.headers["evertide-stale"]) == (200, stale)
        assert "evertide-stale" not in s.get("revenue").headers
        assert "evertide-stale" not in s.get("orders", offset="now").headers
        runner.members = there
