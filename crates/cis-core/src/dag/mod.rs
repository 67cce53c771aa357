//! Definitions of DAGs: what people write, what it means, what it hashes to, and the graph it makes.

pub mod approval;
pub mod canonical;
pub mod model;
pub mod params;
pub mod parse;
pub mod plan;
pub mod problem;
pub mod stored;

pub use approval::{Approval, InputType, OnTimeout};
pub use canonical::{ContentHash, canonical_json, content_hash};
pub use model::{Dag, Kind, More, Policy, RunIf, SkillCall, Task, Values};
pub use parse::{Defaults, Format, Parsed, parse};
pub use plan::Plan;
pub use problem::{Problem, ProblemCode};
pub use stored::{StoredError, from_stored, to_stored};
