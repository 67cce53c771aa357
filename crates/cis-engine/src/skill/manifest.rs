//! The file that describes a skill: `SKILL.md` with YAML front matter (the agent-skills convention, to which
//! our `command` is added), or the older `skill.toml`.
//!
//! Unlike in DAG files, keys nobody here knows are fine: the convention has many, and other tools add theirs.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::{SkillError, shell};

/// A description longer than this is not one; the front matter stands at its start.
const FILE_MAX: u64 = 1 << 20;

/// What the file says.
#[derive(Debug)]
pub(super) struct Manifest {
    pub(super) file: PathBuf,
    pub(super) description: Option<String>,
    pub(super) version: Option<String>,
    pub(super) program: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Front {
    name: Option<String>,
    description: Option<String>,
    version: Option<Value>,
    command: Option<String>,
    metadata: Option<Value>,
}

#[derive(Deserialize)]
struct Older {
    #[serde(default)]
    skill: OlderSkill,
    execution: Option<OlderExecution>,
    dag: Option<toml::Value>,
}

#[derive(Deserialize, Default)]
struct OlderSkill {
    name: Option<String>,
    version: Option<String>,
    description: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Deserialize)]
struct OlderExecution {
    binary: String,
    #[serde(default)]
    args: Vec<String>,
}

/// Reads the description of the skill `name` in `dir`. With both files there, `SKILL.md` describes it and
/// `skill.toml` may still say how it runs.
pub(super) fn read(name: &str, dir: &Path) -> Result<Manifest, SkillError> {
    let (new, old) = (dir.join("SKILL.md"), dir.join("skill.toml"));
    let older = text(name, &old)?.map(|text| from_toml(name, dir, &old, &text));
    let Some(text) = text(name, &new)? else {
        return older.unwrap_or_else(|| {
            Err(SkillError::Invalid {
                name: name.to_owned(),
                why: format!("`{}` holds neither `SKILL.md` nor `skill.toml`", dir.display()),
                hint: Some(
                    "write a `SKILL.md` with `name:`, `description:` and `command:` between `---` lines"
                        .into(),
                ),
            })
        });
    };
    let mut manifest = from_markdown(name, &new, &text)?;
    if let (None, Some(older)) = (&manifest.program, older) {
        manifest.program = older?.program;
    }
    Ok(manifest)
}

/// The text of `path`; `None` if there is no such file.
fn text(name: &str, path: &Path) -> Result<Option<String>, SkillError> {
    let fail = |error| SkillError::Io { name: name.to_owned(), path: path.to_owned(), error };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fail(error)),
    };
    let mut bytes = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(SkillError::invalid(name, format!("`{}` is larger than 1 MiB", path.display())));
    }
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|_| SkillError::invalid(name, format!("`{}` is not UTF-8", path.display())))
}

fn from_markdown(name: &str, file: &Path, text: &str) -> Result<Manifest, SkillError> {
    let Some(front) = front_matter(text) else {
        return Err(SkillError::Invalid {
            name: name.to_owned(),
            why: format!("`{}` has no front matter", file.display()),
            hint: Some("begin it with `name:` and `description:` between two lines of `---`".into()),
        });
    };
    let front: Front = serde_saphyr::from_str(front).map_err(|error| {
        let error = error.to_string();
        let first = error.lines().next().unwrap_or_default().to_owned();
        SkillError::invalid(name, format!("the front matter of `{}`: {first}", file.display()))
    })?;
    same_name(name, front.name.as_deref(), file)?;
    let version = front.version.or_else(|| front.metadata?.get("version").cloned());
    Ok(Manifest {
        file: file.to_owned(),
        description: front.description,
        version: version.as_ref().map(scalar),
        program: front.command.filter(|command| !command.trim().is_empty()).as_deref().map(shell),
    })
}

/// What stands between the first line `---` and the next.
fn front_matter(text: &str) -> Option<&str> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let body = text.strip_prefix("---")?.trim_start_matches([' ', '\t', '\r']).strip_prefix('\n')?;
    let mut end = 0;
    for line in body.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return body.get(..end);
        }
        end += line.len();
    }
    None
}

/// A version is a string to people and, unquoted, a number to YAML.
fn scalar(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn from_toml(name: &str, dir: &Path, file: &Path, text: &str) -> Result<Manifest, SkillError> {
    let invalid = |why: String| SkillError::invalid(name, why);
    let older: Older = toml::from_str(text).map_err(|error| {
        let line =
            error.span().map_or(1, |span| 1 + text.get(..span.start).unwrap_or("").matches('\n').count());
        invalid(format!("`{}` line {line}: {}", file.display(), error.message()))
    })?;
    same_name(name, older.skill.name.as_deref(), file)?;
    if older.dag.is_some() || older.skill.kind.as_deref() == Some("dag") {
        return Err(SkillError::Invalid {
            name: name.to_owned(),
            why: format!("`{}` is a DAG, not a program", file.display()),
            hint: Some(format!("run it with `cis dag run {}`", file.display())),
        });
    }
    match older.skill.kind.as_deref() {
        None | Some("native") => {}
        Some(other) => {
            return Err(invalid(format!(
                "`{}`: type `{other}` is not supported, only `native`",
                file.display()
            )));
        }
    }
    let program = older.execution.map(|execution| program(name, dir, execution)).transpose()?;
    Ok(Manifest {
        file: file.to_owned(),
        description: older.skill.description,
        version: older.skill.version,
        program,
    })
}

/// The binary's path and its arguments. A bare name that is not in the skill's directory is left to `PATH`.
fn program(name: &str, dir: &Path, execution: OlderExecution) -> Result<Vec<String>, SkillError> {
    let relative = Path::new(&execution.binary);
    if execution.binary.is_empty() || relative.components().any(|part| part == Component::ParentDir) {
        // The tree hash covers the directory only.
        return Err(SkillError::invalid(
            name,
            format!("`binary = \"{}\"` leaves its directory", execution.binary),
        ));
    }
    let inside = dir.join(relative);
    let binary = if inside.is_file() {
        inside.to_string_lossy().into_owned()
    } else if !execution.binary.contains('/') {
        execution.binary
    } else {
        return Err(SkillError::invalid(name, format!("there is no file `{}`", inside.display())));
    };
    Ok(std::iter::once(binary).chain(execution.args).collect())
}

/// A skill goes by its directory's name; a file that says otherwise would have people call it by both.
fn same_name(name: &str, told: Option<&str>, file: &Path) -> Result<(), SkillError> {
    match told {
        Some(told) if told != name => Err(SkillError::Invalid {
            name: name.to_owned(),
            why: format!("its directory is called `{name}`, but `{}` says `{told}`", file.display()),
            hint: Some(format!("rename the directory to `{told}`, or say `name: {name}` in the file")),
        }),
        _ => Ok(()),
    }
}
