//! What only the owner of a data directory may say, on its socket: over the network it is refused or not there.

mod support;

use cis_api::calls::CALLS;
use cis_api::{Access, call::Method};
use serde_json::json;
use support::Node;

#[test]
fn owner_options_are_refused_over_the_network() {
    let node = Node::new();
    let up = node.up();
    let dag = json!({"dag_id": "d", "tasks": [{"id": "t", "command": "env > seen"}]}).to_string();
    assert_eq!(up.client.post("/api/v1/dag/publish", &dag).status, 201);
    let context = json!({"env": [["EVIL", "1"]], "cwd": node.dir()});
    let confirm = json!({"context": context}).to_string();
    assert_eq!(up.client.post("/api/v1/dag/d/confirm", &confirm).code(), "Forbidden");
    let review = node.review("d");
    let approve = up.client.post(&format!("/api/v1/pending/{review}/approve"), &confirm);
    assert_eq!(approve.code(), "Forbidden");
    assert_eq!(up.client.post("/api/v1/dag/d/confirm", "{}").status, 200);
    for owner in [json!({"attached": true}), json!({"context": context}), json!({"only": ["t"]})] {
        let body = json!({"owner": owner}).to_string();
        assert_eq!(up.client.post("/api/v1/dag/d/runs", &body).code(), "Forbidden", "{body}");
    }
    assert_eq!(node.read("seen"), "");
}

#[test]
fn calls_of_the_owner_are_not_served_over_the_network() {
    let node = Node::new();
    let up = node.up();
    let of_owner = CALLS.iter().filter(|call| call.access == Access::Owner);
    let mut seen = 0;
    for call in of_owner {
        let path = call.path.replace("{run}", "01900000-0000-7000-8000-000000000000");
        let method = if call.method == Method::Get { "GET" } else { "POST" };
        let answer = up.client.call(method, &path, &[], "{}");
        assert!([404, 405].contains(&answer.status), "{} {path}: {}", call.name, answer.status);
        seen += 1;
    }
    assert!(seen >= 5, "{seen}");
    let document = up.client.get("/api/v1/openapi.json").json();
    assert!(document["paths"]["/api/v1/coordinator"].is_null());
}

#[test]
fn socket_refuses_a_caller_without_the_key() {
    let node = Node::new();
    let _up = node.up();
    let client =
        cis_client::Client::socket(&node.data.join("cis.sock"), "0".repeat(64).as_str(), "mallory").unwrap();
    let request = cis_api::Request::<cis_api::calls::ShowCoordinator>::new(
        cis_api::Nothing {},
        cis_api::Nothing {},
        cis_api::Nothing {},
    );
    let refused = client.call(&request).unwrap_err();
    assert_eq!(refused.code, cis_core::error::ErrorCode::Unauthorized);
}
