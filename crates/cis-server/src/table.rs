//! Every route and what it takes to call it: the calls of `cis-api`, and the pages a node serves beside them. A route that is
//! not here is not served: authentication looks here, not at the code behind it.

use std::sync::LazyLock;

use cis_api::Access;
use cis_api::calls::CALLS;
use cis_core::access::Role;

/// A method and a path, and what it takes to call it.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    pub method: &'static str,
    pub path: &'static str,
    pub access: Access,
}

/// Pages of the node: no calls, but served.
const PAGES: &[Route] = &[
    Route { method: "GET", path: "/metrics", access: Access::With(Role::Read) },
    // Open: a caller that has no token yet is told here how to get one.
    Route { method: "GET", path: "/docs/errors/{code}", access: Access::Open },
    Route { method: "GET", path: "/health", access: Access::Open },
    Route { method: "HEAD", path: "/health", access: Access::Open },
    Route { method: "GET", path: "/api/v1/openapi.json", access: Access::Open },
    Route { method: "GET", path: "/docs", access: Access::Open },
    Route { method: "GET", path: "/docs/{file}", access: Access::Open },
];

/// Calls and pages.
pub static ROUTES: LazyLock<Vec<Route>> = LazyLock::new(|| {
    let calls =
        CALLS.iter().map(|call| Route { method: call.method.as_str(), path: call.path, access: call.access });
    calls.chain(PAGES.iter().copied()).collect()
});

/// Those that are served over the network: the owner's own calls are not.
pub fn network_routes() -> impl Iterator<Item = &'static Route> {
    ROUTES.iter().filter(|route| route.access != Access::Owner)
}

/// Where a route stands in the table; `None` if it is not served.
pub(crate) fn find(method: &str, path: &str) -> Option<usize> {
    ROUTES.iter().position(|route| route.path == path && route.method == method)
}

/// The methods a path is called with over the network.
pub(crate) fn methods(path: &str) -> Vec<&'static str> {
    network_routes().filter(|route| route.path == path).map(|route| route.method).collect()
}
