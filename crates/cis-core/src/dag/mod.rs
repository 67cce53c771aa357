//! Definitions of DAGs: what people write, and what it means.

pub mod model;
pub mod problem;

pub use model::{Dag, Kind, More, Policy, RunIf, SkillCall, Task, Values};
pub use problem::{Problem, ProblemCode};
