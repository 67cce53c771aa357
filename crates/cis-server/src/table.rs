//! Every route and what it takes to call it. A route that is not here is not served: the door looks here, not at the
//! code behind it.

use cis_core::access::Role;

/// What it takes to call a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Nothing.
    Open,
    /// A token.
    Anyone,
    /// A token with this role.
    With(Role),
}

/// Method, path, and what it takes.
pub const ROUTES: &[(&str, &str, Access)] = &[
    ("POST", "/api/v1/dag/publish", Access::With(Role::Publish)),
    // A DAG of that name.
    ("GET", "/api/v1/dag/publish", Access::With(Role::Read)),
    ("POST", "/api/v1/dag/{id}/confirm", Access::With(Role::Confirm)),
    ("POST", "/api/v1/dag/{id}/reject", Access::With(Role::Confirm)),
    ("GET", "/api/v1/dag/{id}/status", Access::With(Role::Read)),
    ("GET", "/api/v1/dag/{id}/runs", Access::With(Role::Read)),
    ("POST", "/api/v1/dag/{id}/runs", Access::With(Role::Publish)),
    ("GET", "/api/v1/dag/{id}/why", Access::With(Role::Read)),
    ("GET", "/api/v1/dag/{id}", Access::With(Role::Read)),
    ("GET", "/api/v1/dag", Access::With(Role::Read)),
    ("GET", "/api/v1/pending", Access::With(Role::Read)),
    ("GET", "/api/v1/pending/{review}", Access::With(Role::Read)),
    ("POST", "/api/v1/pending/{review}/approve", Access::With(Role::Confirm)),
    ("POST", "/api/v1/pending/{review}/reject", Access::With(Role::Confirm)),
    ("GET", "/api/v1/runs", Access::With(Role::Read)),
    ("GET", "/api/v1/runs/{run}", Access::With(Role::Read)),
    ("GET", "/api/v1/runs/{run}/tasks", Access::With(Role::Read)),
    ("GET", "/api/v1/runs/{run}/logs", Access::With(Role::Read)),
    ("GET", "/api/v1/runs/{run}/why", Access::With(Role::Read)),
    ("POST", "/api/v1/runs/{run}/cancel", Access::With(Role::Confirm)),
    ("POST", "/api/v1/tasks", Access::With(Role::Publish)),
    ("POST", "/api/v1/tasks/claim", Access::With(Role::Work)),
    ("POST", "/api/v1/tasks/{execution}/heartbeat", Access::With(Role::Work)),
    ("POST", "/api/v1/tasks/{execution}/progress", Access::With(Role::Work)),
    ("POST", "/api/v1/tasks/{execution}/log", Access::With(Role::Work)),
    ("POST", "/api/v1/tasks/{execution}/complete", Access::With(Role::Work)),
    ("POST", "/api/v1/tasks/{execution}/fail", Access::With(Role::Work)),
    ("POST", "/api/v1/tasks/{execution}/release", Access::With(Role::Work)),
    ("POST", "/api/v1/runs/{run}/tasks/{task}/approve", Access::With(Role::Confirm)),
    ("POST", "/api/v1/runs/{run}/tasks/{task}/reject", Access::With(Role::Confirm)),
    ("POST", "/api/v1/runs/{run}/resume", Access::With(Role::Publish)),
    ("POST", "/api/v1/runs/{run}/retry", Access::With(Role::Publish)),
    ("POST", "/api/v1/runs/{run}/pause", Access::With(Role::Confirm)),
    ("POST", "/api/v1/runs/{run}/unpause", Access::With(Role::Confirm)),
    ("POST", "/api/v1/scopes/{scope}/pause", Access::With(Role::Confirm)),
    ("POST", "/api/v1/scopes/{scope}/unpause", Access::With(Role::Confirm)),
    ("POST", "/api/v1/node/drain", Access::With(Role::Admin)),
    ("POST", "/api/v1/node/undrain", Access::With(Role::Admin)),
    ("GET", "/api/v1/events", Access::With(Role::Read)),
    ("GET", "/api/v1/tokens", Access::With(Role::Admin)),
    ("POST", "/api/v1/tokens", Access::With(Role::Admin)),
    ("DELETE", "/api/v1/tokens/{id}", Access::With(Role::Admin)),
    ("GET", "/api/v1/nodes", Access::With(Role::Read)),
    ("GET", "/api/v1/whoami", Access::Anyone),
    ("GET", "/ready", Access::Anyone),
    ("GET", "/metrics", Access::With(Role::Read)),
    // Open: who has no token yet is told here how to get one.
    ("GET", "/docs/errors/{code}", Access::Open),
    ("GET", "/health", Access::Open),
    ("HEAD", "/health", Access::Open),
    ("GET", "/api/v1/openapi.json", Access::Open),
    ("GET", "/docs", Access::Open),
    ("GET", "/docs/{file}", Access::Open),
];

/// Where a route stands in the table; `None` if it is not served.
pub(crate) fn find(method: &str, path: &str) -> Option<usize> {
    ROUTES.iter().position(|(m, p, _)| *p == path && *m == method)
}

/// The methods a path is called with.
pub(crate) fn methods(path: &str) -> Vec<&'static str> {
    ROUTES.iter().filter(|(_, p, _)| *p == path).map(|(method, ..)| *method).collect()
}
