//! Which crate may know which. A crate exists to forbid an import; this is where the forbidding happens.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::run::{cargo, output};

/// Each crate of ours with the ones of ours it may know.
const MAY_KNOW: [(&str, &[&str]); 14] = [
    ("cis-core", &[]),
    ("cis-fail", &[]),
    ("cis-api", &["cis-core"]),
    ("cis-store", &["cis-api", "cis-core", "cis-fail"]),
    ("cis-runner", &["cis-core", "cis-fail", "cis-fuzz"]),
    ("cis-engine", &["cis-api", "cis-core", "cis-fail", "cis-store", "cis-runner", "cis-fuzz"]),
    ("cis-server", &["cis-api", "cis-core", "cis-store", "cis-engine", "cis-fuzz"]),
    ("cis-client", &["cis-api", "cis-core"]),
    ("cis-notify", &["cis-core", "cis-store", "cis-engine", "cis-client"]),
    (
        "cis",
        &[
            "cis-api",
            "cis-core",
            "cis-store",
            "cis-runner",
            "cis-engine",
            "cis-server",
            "cis-client",
            "cis-notify",
        ],
    ),
    ("cis-torture", &["cis-api", "cis-core", "cis-fail", "cis-store", "cis-runner", "cis-engine"]),
    // For its tests; what it offers knows none of them, and is for theirs.
    ("cis-fuzz", &["cis", "cis-api", "cis-core", "cis-store", "cis-runner", "cis-engine", "cis-notify"]),
    ("cis-schedule", &["cis-core", "cis-fail", "cis-store"]),
    ("xtask", &["cis-core", "cis-store"]),
];

/// Each crate of ours with libraries that are none of its business.
const MUST_NOT_KNOW: [(&str, &[&str]); 7] = [
    ("cis-core", &["tokio", "rusqlite", "rustix", "nix", "getrandom", "axum", "reqwest"]),
    ("cis-api", &["tokio", "rusqlite", "rustix", "nix", "getrandom", "axum", "hyper", "reqwest"]),
    ("cis-runner", &["tokio", "rusqlite", "axum", "reqwest"]),
    ("cis-engine", &["rusqlite", "axum"]),
    ("cis-server", &["rusqlite", "rustix", "nix"]),
    ("cis-notify", &["rusqlite", "axum"]),
    ("cis", &["rusqlite"]),
];

/// What the tests of a crate know and the crate itself must not.
const TESTS_KNOW: [(&str, &str); 1] = [
    // They make databases as earlier versions left them.
    ("cis", "rusqlite"),
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `dev` for what only tests know.
    kind: Option<String>,
}

/// Every arrow that points the wrong way.
pub(super) fn check() -> Result<Vec<String>> {
    let text = output(&mut cargo(&["metadata", "--format-version", "1", "--no-deps", "--locked"])?)?;
    let metadata: Metadata =
        serde_json::from_str(&text).context("`cargo metadata` did not answer in its format")?;
    Ok(metadata.packages.iter().flat_map(wrong).collect())
}

fn wrong(package: &Package) -> Vec<String> {
    let name = package.name.as_str();
    let may: BTreeMap<&str, &[&str]> = MAY_KNOW.into();
    let must_not: BTreeMap<&str, &[&str]> = MUST_NOT_KNOW.into();
    let Some(known) = may.get(name) else {
        return vec![format!("{name}: not in the table of who may know whom, in `xtask/src/tidy/arrows.rs`")];
    };
    let strange = must_not.get(name).copied().unwrap_or_default();
    let allowed = |on: &str| if may.contains_key(on) { known.contains(&on) } else { !strange.contains(&on) };
    let by_tests =
        |on: &Dependency| on.kind.as_deref() == Some("dev") && TESTS_KNOW.contains(&(name, on.name.as_str()));
    let wrong = package.dependencies.iter().filter(|on| !allowed(&on.name) && !by_tests(on));
    wrong.map(|on| format!("{name}: must not know `{}`", on.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, on: &[&str]) -> Package {
        let dependencies =
            on.iter().map(|name| Dependency { name: (*name).to_owned(), kind: None }).collect();
        Package { name: name.to_owned(), dependencies }
    }

    #[test]
    fn arrows_point_one_way() {
        assert!(wrong(&package("cis-engine", &["cis-core", "cis-store", "tokio"])).is_empty());
        assert_eq!(wrong(&package("cis-store", &["cis-engine"])), ["cis-store: must not know `cis-engine`"]);
        assert_eq!(wrong(&package("cis-core", &["tokio"])), ["cis-core: must not know `tokio`"]);
        assert_eq!(wrong(&package("cis-new", &[])).len(), 1, "a new crate must be placed");
        let mut cis = package("cis", &["rusqlite"]);
        assert_eq!(wrong(&cis), ["cis: must not know `rusqlite`"]);
        cis.dependencies[0].kind = Some("dev".to_owned());
        assert!(wrong(&cis).is_empty(), "its tests may");
    }
}
