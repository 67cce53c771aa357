//! What a node says of itself: the OpenAPI document, and the page that shows it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by failing")]

mod support;

use std::collections::BTreeSet;

use cis_server::table::{Route, network_routes};
use support::Node;
use support::http::{Answer, Client};

/// What anybody gets who has no token.
fn open(client: &Client, path: &str) -> Answer {
    client.raw("GET", path, &client.address, &[], "")
}

#[test]
fn anybody_may_read_what_there_is_to_call() {
    let node = Node::new();
    let up = node.up();
    let answer = open(&up.client, "/api/v1/openapi.json");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    let document = answer.json();
    assert_eq!(document["openapi"], "3.1.0");
    for Route { method, path, .. } in network_routes().copied() {
        let operation = &document["paths"][path][method.to_lowercase()];
        assert!(
            operation["responses"]["200"].is_object() || operation["responses"]["201"].is_object(),
            "{path}"
        );
    }
    let codes = document["components"]["schemas"]["ErrorCode"]["enum"].as_array().unwrap();
    assert!(codes.iter().any(|code| code == "ContentConflict"), "{codes:?}");
}

#[test]
fn the_page_loads_nothing_from_anywhere_else() {
    let node = Node::new();
    let up = node.up();
    let page = open(&up.client, "/docs");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'; "), "{policy}");
    // Nothing in the page itself that this policy would forbid.
    for inline in ["<style", "style=", "onclick", "<script>"] {
        assert!(!page.body.contains(inline), "{inline}");
    }
    let parts = page.body.split(['"', '\'']).filter(|text| text.starts_with('/'));
    let parts: BTreeSet<&str> = parts.collect();
    assert_eq!(parts, ["/api/v1/openapi.json", "/docs/page.css", "/docs/page.js"].into());
    for path in parts {
        let part = open(&up.client, path);
        assert_eq!(part.status, 200, "{path}");
        assert!(!part.body.contains("://") && !page.body.contains("://"), "{path} names another place");
    }
    assert_eq!(open(&up.client, "/docs/other.js").code(), "NotFound");
}

#[test]
fn what_is_not_in_it_is_refused_like_everything_else() {
    let node = Node::new();
    let up = node.up();
    let wrong = up.client.call("PUT", "/api/v1/tokens", &[], "{}");
    assert_eq!((wrong.status, wrong.code()), (405, "MethodNotAllowed".to_owned()));
    assert_eq!(wrong.header("allow"), Some("GET, POST"));
    // Bytes that are no text name nothing.
    let bytes = up.client.get("/api/v1/dag/%FF/status");
    assert_eq!((bytes.status, bytes.code()), (404, "NotFound".to_owned()));
    let misspelt = up.client.get("/api/v1/dag?staus=pending");
    assert_eq!((misspelt.status, misspelt.code()), (422, "ValidationFailed".to_owned()));
    assert!(misspelt.body.contains("staus"), "{}", misspelt.body);
}
