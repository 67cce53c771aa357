//! A DAG from a file, with everything that depends on where the file stands: its default id, its scope, its
//! skills.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cis_api::definition::DefinitionBody;
use cis_core::dag::parse::{Defaults, Format, parse};
use cis_core::dag::plan::Plan;
use cis_core::dag::{Dag, Problem, canonical};
use cis_core::error::ErrorCode;
use cis_engine::coordinator::Options;
use cis_engine::skill::{self, KeptLock, SkillPath};
use serde_json::json;

use super::{Failure, Setup};
use crate::document;
use crate::project;
use crate::term::{Report, text};

/// Files beyond this are not even read.
const FILE_BYTES_MAX: u64 = (32 << 20) + 1;

/// A definition read from a file.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) dag: Arc<Dag>,
    pub(super) plan: Plan,
    pub(super) content_hash: String,
    pub(super) warnings: Vec<Problem>,
    /// Where its skills are looked for.
    pub(super) skill_dirs: Vec<PathBuf>,
}

/// Does the caller mean a file, or something already published?
pub(super) fn is_file(target: &str) -> bool {
    target == "-"
        || target.contains('/')
        || Format::of_path(Path::new(target)).is_some()
        || Path::new(target).is_file()
}

/// A definition as its file has it.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) dag: Dag,
    pub(super) warnings: Vec<Problem>,
    /// Where the file stands.
    here: PathBuf,
}

/// Reads, checks and pins the definition in `file`.
pub(super) fn load(setup: &Setup, file: &Path, skill_dirs: &[PathBuf]) -> Result<Loaded, Failure> {
    let Checked { mut dag, warnings, here } = check(setup, file)?;
    let skill_dirs = setup.skill_dirs(skill_dirs, &here);
    let problems = skill::pin(&mut dag, &SkillPath::new(skill_dirs.clone()));
    if !problems.is_empty() {
        return Err(invalid(&file.display().to_string(), problems));
    }
    let content_hash = canonical::content_hash(&dag).as_str().to_owned();
    let plan = Plan::new(&dag);
    Ok(Loaded { dag: Arc::new(dag), plan, content_hash, warnings, skill_dirs })
}

impl Loaded {
    /// As the coordinator of the data directory is told, its skills kept: the one in this process takes it as it is.
    pub(super) fn body(&self, new_revision: bool) -> DefinitionBody {
        DefinitionBody::Parsed {
            dag: self.dag.clone(),
            content_hash: self.content_hash.clone(),
            new_revision,
            write: write_pinned,
        }
    }

    /// Keeps its skills as they were pinned. They stay while the lock is held, and after that for as long as a revision
    /// needs them: hold it until this one is published.
    pub(super) fn keep_skills(&self, options: &Options) -> Result<Option<KeptLock>, Failure> {
        let path = SkillPath::new(self.skill_dirs.clone());
        Ok(skill::keep(&self.dag, &path, &options.data_dir, options.durability)?)
    }
}

/// A definition with the hashes of its skills, which are kept already.
fn write_pinned(dag: &Dag, new_revision: bool) -> Vec<u8> {
    // What was parsed has a text. Without one, what is left is refused as no definition.
    let mut text = document::to_value(dag).unwrap_or_default();
    (text["revision"], text["skills"]) = (new_revision.into(), json!(dag.skills));
    text.to_string().into_bytes()
}

impl Checked {
    /// Says what is worth knowing about it although it is fine.
    pub(super) fn warn(&self) {
        self.warnings.iter().for_each(|warning| crate::term::report::warn(&warning.to_string()));
    }

    /// As a node is told: it finds and pins the skills itself.
    pub(super) fn body(&self, new_revision: bool) -> Result<DefinitionBody, Failure> {
        let mut text = document::to_value(&self.dag)?;
        text["revision"] = new_revision.into();
        Ok(DefinitionBody::Text(text.to_string().into_bytes()))
    }
}

/// Reads and checks the definition in `file`; its skills are for whoever runs it to find.
pub(super) fn check(setup: &Setup, file: &Path) -> Result<Checked, Failure> {
    let shown = file.display().to_string();
    let bytes = read(file)?;
    let is_stdin = file == Path::new("-");
    // The parent of a bare file name is empty, which is no directory to look up from.
    let parent = file.parent().filter(|parent| !is_stdin && !parent.as_os_str().is_empty());
    let here = parent.unwrap_or(Path::new("."));
    let here = std::path::absolute(here).unwrap_or_else(|_| here.to_owned());
    let scope = project::root(&here, &setup.config.home.value).map(|root| project::scope(&root));
    let dag_id = file.file_stem().filter(|_| !is_stdin).map(|stem| stem.to_string_lossy().into_owned());
    let format = Format::of_path(file).unwrap_or_else(|| Format::guess(&bytes));
    let parsed =
        parse(&bytes, format, &Defaults { dag_id, scope }).map_err(|problems| invalid(&shown, problems))?;
    Ok(Checked { dag: parsed.dag, warnings: parsed.warnings, here })
}

fn invalid(file: &str, problems: Vec<Problem>) -> Failure {
    Failure { report: Box::new(Report::invalid(file, problems)), exit: 2 }
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = if file == Path::new("-") {
        std::io::stdin().lock().take(FILE_BYTES_MAX).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file).and_then(|f| f.take(FILE_BYTES_MAX).read_to_end(&mut bytes))
    };
    match read {
        Ok(_) => Ok(bytes),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            Err(Failure::new(ErrorCode::NotFound, format!("there is no file `{}`", file.display())))
        }
        Err(e) => Err(Failure::usage(format!("cannot read `{}`: {e}", file.display()))),
    }
}

/// Says what is worth knowing about a definition that is nevertheless fine.
pub(super) fn warn(setup: &Setup, loaded: &Loaded) {
    for warning in &loaded.warnings {
        crate::term::report::warn(&warning.to_string());
    }
    let own = [setup.config.node_name.value.as_deref(), setup.config.node_id.value.as_deref()];
    let foreign = |target: &Option<String>| target.as_deref().is_some_and(|node| !own.contains(&Some(node)));
    if foreign(&loaded.dag.target_node) {
        let node = loaded.dag.target_node.as_deref().unwrap_or_default();
        crate::term::report::warn(&format!("`target_node` names `{node}`, but this run happens here"));
    }
    let tasks = loaded.dag.tasks.iter().filter(|task| foreign(&task.more().target_node)).count();
    if tasks > 0 {
        let tasks = text::count(tasks, "task");
        crate::term::report::warn(&format!("{tasks} name another `target_node`, but this run happens here"));
    }
}
