//! Which skills the revisions of a store need.

use super::reader::Reader;
use crate::port::Answer;

/// A skill of a revision that runs, or may be confirmed and run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedSkill {
    pub dag_id: String,
    pub revision: i64,
    pub name: String,
    /// `sha256:…` over its files, or `builtin:…`.
    pub tree_hash: String,
}

impl Reader {
    /// The skills of all revisions that are confirmed or wait to be: the others never run again.
    pub fn pinned_skills(&self) -> Answer<Vec<PinnedSkill>> {
        self.collect(
            "SELECT d.dag_id, f.revision, s.key, s.value
             FROM dag_definitions f JOIN dags d USING (dag_key), json_each(f.tasks_json, '$.skills') s
             WHERE f.status IN ('pending', 'confirmed')
             ORDER BY d.dag_id, d.scope, f.revision, s.key",
            [],
            |row| {
                Ok(PinnedSkill {
                    dag_id: row.get(0)?,
                    revision: row.get(1)?,
                    name: row.get(2)?,
                    tree_hash: row.get(3)?,
                })
            },
        )
    }
}
