//! Mutants of text: what `cargo-mutants` does not change. The moves of the state machines, each taken out of its table; and
//! guards in SQL, each taken out of its statement. What is bound stays bound, so that the statement is still one.

use std::fmt;

use anyhow::{Result, bail};

/// Where the tables are, and where the SQL is.
const TABLES: [&str; 3] =
    ["crates/cis-core/src/revision.rs", "crates/cis-core/src/run.rs", "crates/cis-core/src/task.rs"];
const SQL: &str = "crates/cis-store/src/sqlite/";

/// One change of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mutant {
    pub(super) package: &'static str,
    /// From the root of the checkout.
    pub(super) file: String,
    /// What stands in it, once.
    text: String,
    /// What it becomes.
    without: String,
}

/// A guard in SQL, and the text without it.
struct Guard {
    file: &'static str,
    text: &'static str,
    without: &'static str,
}

const fn guard(file: &'static str, text: &'static str, without: &'static str) -> Guard {
    Guard { file, text, without }
}

/// Every mutant; `read` gives the text of a file.
pub(super) fn all(read: impl Fn(&str) -> Result<String>) -> Result<Vec<Mutant>> {
    let mut all = Vec::new();
    for file in TABLES {
        let text = read(file)?;
        all.extend(text.lines().filter(|line| is_move(line)).map(|line| Mutant {
            package: "cis-core",
            file: file.to_owned(),
            text: format!("{line}\n"),
            without: String::new(),
        }));
    }
    all.extend(GUARDS.iter().map(|guard| Mutant {
        package: "cis-store",
        file: format!("{SQL}{}", guard.file),
        text: guard.text.to_owned(),
        without: guard.without.to_owned(),
    }));
    Ok(all)
}

/// `(S::Ready, M::Claim) => S::Running,` is.
fn is_move(line: &str) -> bool {
    line.trim_start().starts_with("(S::")
}

/// Every guard of a claim, a lease or a task's move whose absence could change anything.
const GUARDS: [Guard; 24] = [
    guard("advance.rs", "AND fence = ?2 AND status IN", "AND ?2 IS NOT NULL AND status IN"),
    guard("advance.rs", "AND fence = ?2 AND status IN ('running', 'cancelling')", "AND fence = ?2"),
    guard(
        "advance.rs",
        "AND +status = ?2 AND version = ?3 AND fence",
        "AND ?2 IS NOT NULL AND version = ?3 AND fence",
    ),
    guard("advance.rs", "AND version = ?3 AND fence = ?19", "AND ?3 IS NOT NULL AND fence = ?19"),
    guard("advance.rs", "AND fence = ?19", "AND ?19 IS NOT NULL"),
    guard("claim.rs", "AND hold = 0 AND version = ?2", "AND hold = 0 AND ?2 IS NOT NULL"),
    guard("leases.rs", "WHERE boot_id <> ?1", "WHERE ?1 IS NOT NULL"),
    guard(
        "leases.rs",
        "AND l.subject_key = ?1 AND l.fence = ?2",
        "AND l.subject_key = ?1 AND ?2 IS NOT NULL",
    ),
    guard(
        "leases.rs",
        "AND fence < ?2\n         ORDER BY fence DESC",
        "AND ?2 IS NOT NULL\n         ORDER BY fence DESC",
    ),
    guard(
        "leases.rs",
        "SELECT fence, number FROM notes WHERE execution_id = ?1 AND fence < ?2",
        "SELECT fence, number FROM notes WHERE execution_id = ?1 AND ?2 IS NOT NULL",
    ),
    guard(
        "leases.rs",
        "term_ms = ?4\n             WHERE subject_kind = 'task' AND subject_key = ?1 AND fence = ?2",
        "term_ms = ?4\n             WHERE subject_kind = 'task' AND ?1 + ?2 IS NOT NULL",
    ),
    guard("leases.rs", "AND number <= ?3", "AND ?3 IS NOT NULL"),
    guard(
        "leases.rs",
        "DELETE FROM leases WHERE subject_kind = 'task' AND subject_key = ?1 AND fence = ?2",
        "DELETE FROM leases WHERE subject_kind = 'task' AND ?1 + ?2 IS NOT NULL",
    ),
    guard(
        "leases.rs",
        "expires FROM leases\n             WHERE subject_kind = 'task' AND subject_key = ?1 AND fence = ?2",
        "expires FROM leases\n             WHERE subject_kind = 'task' AND subject_key = ?1 AND ?2 IS NOT NULL",
    ),
    guard("leases.rs", "AND expires <= ?1", "AND ?1 IS NOT NULL"),
    guard("leases.rs", "AND deadline <= ?1", "AND ?1 IS NOT NULL"),
    guard(
        "leases.rs",
        "AND l.fence = ?2\n                 WHERE t.execution_id",
        "AND ?2 IS NOT NULL\n                 WHERE t.execution_id",
    ),
    guard("tasks.rs", "AND +status = ?2 AND version = ?3", "AND ?2 IS NOT NULL AND version = ?3"),
    guard("tasks.rs", "AND +status = ?2 AND version = ?3", "AND +status = ?2 AND ?3 IS NOT NULL"),
    guard(
        "tasks.rs",
        "AND status = 'pending' AND deps_left = ?3",
        "AND status = 'pending' AND deps_left >= ?3",
    ),
    guard(
        "tasks.rs",
        "WHERE run_key = ?1 AND status = 'ready' AND hold = 1",
        "WHERE ?1 IS NOT NULL AND status = 'ready' AND hold = 1",
    ),
    guard("tasks.rs", "AND fence = ?2 AND status IN", "AND ?2 IS NOT NULL AND status IN"),
    guard("tasks.rs", "AND fence = ?2 AND status IN ('running', 'cancelling')", "AND fence = ?2"),
    guard("keys.rs", "WHERE caller = ?1 AND key = ?2", "WHERE ?1 IS NOT NULL AND key = ?2"),
];

impl Mutant {
    /// `text` with the change.
    pub(super) fn apply(&self, text: &str) -> Result<String> {
        if text.matches(&self.text).count() != 1 {
            bail!("`{}` does not stand once in `{}`: bring the list up to date", self.text.trim(), self.file);
        }
        Ok(text.replace(&self.text, &self.without))
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        write!(f, "{}: `{}` becomes `{}`", self.file, one_line(&self.text), one_line(&self.without))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_has_its_place() {
        let read = |file: &str| Ok(std::fs::read_to_string(crate::repo::root().join(file))?);
        let all = all(read).unwrap();
        assert!(all.len() > GUARDS.len() + 20, "no moves were found");
        for mutant in all {
            mutant.apply(&read(&mutant.file).unwrap()).unwrap();
        }
    }
}
