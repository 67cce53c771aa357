//! Turning what was given, wherever, into what is meant; each kind of value in one place, so that a file, a
//! variable and a flag are read alike.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use cis_core::dag::parse::duration;
use cis_core::dag::{Problem, ProblemCode};
use cis_core::id::is_name;
use cis_core::notice::Occasion;
use cis_core::source::Millis;
use cis_notify::webhook::Url;

use super::file::nearest;
use super::{Auth, Durability, Metrics, Setting, Source};

/// A value as it was given.
#[derive(Debug, Clone)]
pub(super) enum Raw {
    Text(String),
    Integer(i64),
    Truth(bool),
    List(Vec<String>),
}

/// What was given, by key; later sources replace earlier ones.
pub(super) type Given = BTreeMap<&'static str, Setting<Raw>>;

/// Reads values out of what was given.
pub(super) struct Reader<'a> {
    pub(super) given: Given,
    pub(super) problems: &'a mut Vec<Problem>,
    /// What `~/.cis` is; `~` in paths is its parent.
    pub(super) home: &'a Path,
}

/// Why a value is not one, and what would be.
type Refusal = (ProblemCode, String, Option<String>);

impl Reader<'_> {
    pub(super) fn mode(&mut self) {
        self.read("dag.mode", (), |raw| match text(raw)? {
            "standalone" => Ok(()),
            "cluster" => Err((
                ProblemCode::NotYetSupported,
                "mode `cluster` is not yet supported".to_owned(),
                Some("use `mode = \"standalone\"`, the default".to_owned()),
            )),
            other => Err(word(other, &["standalone"])),
        });
    }

    pub(super) fn durability(&mut self) -> Setting<Durability> {
        self.read("dag.durability", Durability::Power, |raw| match text(raw)? {
            "power" => Ok(Durability::Power),
            "process" => Ok(Durability::Process),
            other => Err(word(other, &["power", "process"])),
        })
    }

    /// How many of something, at least one.
    pub(super) fn count(&mut self, key: &'static str, usual: u32, max: u32) -> Setting<u32> {
        self.read(key, usual, |raw| whole(raw, 1, max))
    }

    /// How many of something, perhaps none.
    pub(super) fn number(&mut self, key: &'static str, usual: u32, max: u32) -> Setting<u32> {
        self.read(key, usual, |raw| whole(raw, 0, max))
    }

    /// How old something may become; by default, as old as it likes.
    pub(super) fn age(&mut self, key: &'static str) -> Setting<Option<Millis>> {
        self.read(key, None, |raw| some_age(raw).map(Some))
    }

    /// The same with a usual age.
    pub(super) fn age_or(&mut self, key: &'static str, usual: Millis) -> Setting<Millis> {
        self.read(key, usual, some_age)
    }

    /// How much room something may take; by default, as much as it likes.
    pub(super) fn some_size(&mut self, key: &'static str) -> Setting<Option<u64>> {
        self.read(key, None, |raw| match room(raw)? {
            0 => Err(bad("without any room nothing could be kept")),
            bytes => Ok(Some(bytes)),
        })
    }

    pub(super) fn metrics(&mut self) -> Setting<Metrics> {
        self.read("node.metrics", Metrics::Token, |raw| match text(raw)? {
            "token" => Ok(Metrics::Token),
            "open" => Ok(Metrics::Open),
            other => Err(word(other, &["token", "open"])),
        })
    }

    pub(super) fn duration(&mut self, key: &'static str, usual: Millis) -> Setting<Millis> {
        self.read(key, usual, millis)
    }

    /// A duration that is one: in no time at all nobody could do anything.
    pub(super) fn lasting(&mut self, key: &'static str, usual: Millis) -> Setting<Millis> {
        self.read(key, usual, |raw| match millis(raw)? {
            Millis(0) => Err((ProblemCode::BadDuration, "it must last".to_owned(), None)),
            lasting => Ok(lasting),
        })
    }

    pub(super) fn truth(&mut self, key: &'static str) -> Setting<bool> {
        self.read(key, false, |raw| match raw {
            Raw::Truth(truth) => Ok(*truth),
            Raw::Text(text) if text == "true" => Ok(true),
            Raw::Text(text) if text == "false" => Ok(false),
            _ => Err((ProblemCode::WrongType, "`true` or `false` belongs here".to_owned(), None)),
        })
    }

    pub(super) fn auth(&mut self) -> Setting<Auth> {
        self.read("node.auth", Auth::Tokens, |raw| match text(raw)? {
            "tokens" => Ok(Auth::Tokens),
            "trusted-local" => Ok(Auth::TrustedLocal),
            other => Err(word(other, &["tokens", "trusted-local"])),
        })
    }

    pub(super) fn size(&mut self, key: &'static str, usual: u64) -> Setting<u64> {
        self.read(key, usual, room)
    }

    pub(super) fn dirs(&mut self, key: &'static str) -> Setting<Vec<PathBuf>> {
        let user = self.home.parent().unwrap_or(Path::new("/")).to_owned();
        // A relative directory in the file stands beside the file; in a variable it stands where one stands.
        let base = self.home.to_owned();
        let from_file = matches!(self.given.get(key), Some(Setting { source: Source::File { .. }, .. }));
        self.read(key, Vec::new(), |raw| {
            let dir = |text: &String| match text.strip_prefix("~/") {
                Some(rest) => user.join(rest),
                None if from_file => base.join(text),
                None => PathBuf::from(text),
            };
            Ok(list(raw, ':').iter().map(dir).collect())
        })
    }

    pub(super) fn env_names(&mut self, key: &'static str) -> Setting<Vec<String>> {
        self.read(key, Vec::new(), |raw| {
            let names = list(raw, ',');
            match names.iter().find(|name| name.contains(['=', '\0', ' '])) {
                Some(name) => Err(bad(format!("`{name}` is not the name of an environment variable"))),
                None => Ok(names),
            }
        })
    }

    pub(super) fn host_names(&mut self, key: &'static str) -> Setting<Vec<String>> {
        self.read(key, Vec::new(), |raw| {
            let names = list(raw, ',');
            let is_host = |name: &String| {
                let is_name = name.bytes().all(|b| b.is_ascii_alphanumeric() || b".-".contains(&b));
                (!name.is_empty() && is_name) || name.parse::<Ipv6Addr>().is_ok()
            };
            match names.iter().find(|name| !is_host(name)) {
                Some(name) => Err(bad(format!(
                    "`{name}` is neither the name of a host (letters, digits, `.` and `-`) nor an address"
                ))),
                None => Ok(names),
            }
        })
    }

    pub(super) fn name(&mut self, key: &'static str) -> Setting<Option<String>> {
        self.read(key, None, |raw| {
            let name = text(raw)?;
            if !is_name(name) {
                return Err((ProblemCode::BadName, cis_core::id::BadName(name.to_owned()).to_string(), None));
            }
            Ok(Some(name.to_owned()))
        })
    }

    pub(super) fn text(&mut self, key: &'static str) -> Setting<Option<String>> {
        self.read(key, None, |raw| text(raw).map(|text| Some(text.to_owned())))
    }

    pub(super) fn path(&mut self, key: &'static str) -> Setting<Option<PathBuf>> {
        let (user, base) = (self.home.parent().unwrap_or(Path::new("/")).to_owned(), self.home.to_owned());
        self.read(key, None, |raw| {
            let text = text(raw)?;
            Ok(Some(text.strip_prefix("~/").map_or_else(|| base.join(text), |rest| user.join(rest))))
        })
    }

    pub(super) fn url(&mut self, key: &'static str) -> Setting<Option<Url>> {
        self.read(key, None, |raw| Url::parse(text(raw)?).map(Some).map_err(bad))
    }

    pub(super) fn occasions(&mut self, key: &'static str, usual: &[Occasion]) -> Setting<Vec<Occasion>> {
        self.read(key, usual.to_vec(), |raw| {
            let known = Occasion::ALL.map(Occasion::word);
            let items = list(raw, ',');
            items.iter().map(|item| Occasion::from_word(item).ok_or_else(|| word(item, &known))).collect()
        })
    }

    fn read<T>(
        &mut self,
        key: &'static str,
        usual: T,
        read: impl FnOnce(&Raw) -> Result<T, Refusal>,
    ) -> Setting<T> {
        let Some(Setting { value, source }) = self.given.remove(key) else {
            return Setting { value: usual, source: Source::Default };
        };
        match read(&value) {
            Ok(value) => Setting { value, source },
            Err((code, told, hint)) => {
                let (path, line) = match &source {
                    Source::File { line, .. } => (key, Some(*line)),
                    Source::Env(name) | Source::Flag(name) => (*name, None),
                    Source::Default => (key, None),
                };
                self.problems.push(Problem { line, hint, ..Problem::new(code, path, told) });
                Setting { value: usual, source }
            }
        }
    }
}

fn text(raw: &Raw) -> Result<&str, Refusal> {
    match raw {
        Raw::Text(text) => Ok(text),
        Raw::Integer(_) | Raw::Truth(_) | Raw::List(_) => {
            Err((ProblemCode::WrongType, "a string belongs here".to_owned(), None))
        }
    }
}

/// How old something may become: a duration, or any number of days.
pub(crate) fn age(text: &str) -> Result<Millis, String> {
    const DAY: u64 = 24 * 60 * 60 * 1_000;
    let days = text.trim().strip_suffix('d').and_then(|days| days.parse::<u32>().ok());
    days.map_or_else(|| duration::from_text(text), |days| Ok(Millis(u64::from(days) * DAY)))
}

fn some_age(raw: &Raw) -> Result<Millis, Refusal> {
    let refuse = |why| {
        let hint = Some("write it as `\"90d\"` or `\"12h\"`".to_owned());
        (ProblemCode::BadDuration, why, hint)
    };
    match age(text(raw)?).map_err(refuse)? {
        Millis(0) => Err(refuse("it must last".to_owned())),
        age => Ok(age),
    }
}

fn whole(raw: &Raw, min: u32, max: u32) -> Result<u32, Refusal> {
    let number = match raw {
        Raw::Integer(number) => *number,
        other => text(other)?.trim().parse().map_err(|_| bad("not a whole number"))?,
    };
    let fits = u32::try_from(number).ok().filter(|number| (min..=max).contains(number));
    fits.ok_or_else(|| bad(format!("{number} is not between {min} and {max}")))
}

fn millis(raw: &Raw) -> Result<Millis, Refusal> {
    let refuse = |given: &str| {
        let hint = Some("write it as `\"10s\"`, `\"1m30s\"` or a number of seconds".to_owned());
        (ProblemCode::BadDuration, format!("`{given}` is not a duration"), hint)
    };
    let given = match raw {
        Raw::Integer(seconds) => format!("{seconds}s"),
        other => text(other)?.to_owned(),
    };
    // Variables are text, so a bare number of seconds comes as text too.
    let spelled = if given.parse::<u64>().is_ok() { format!("{given}s") } else { given.clone() };
    let span: jiff::SignedDuration = spelled.parse().map_err(|_| refuse(&given))?;
    u64::try_from(span.as_millis()).map(Millis).map_err(|_| refuse(&given))
}

/// A list; in a variable, its items stand between separators.
fn list(raw: &Raw, separator: char) -> Vec<String> {
    match raw {
        Raw::List(items) => items.clone(),
        Raw::Integer(number) => vec![number.to_string()],
        Raw::Truth(truth) => vec![truth.to_string()],
        Raw::Text(text) => {
            text.split(separator).map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
        }
    }
}

fn room(raw: &Raw) -> Result<u64, Refusal> {
    match raw {
        Raw::Integer(bytes) => u64::try_from(*bytes).map_err(|_| bad("a size cannot be negative")),
        other => bytes(text(other)?),
    }
}

/// `10MiB`, `64 KiB`, `1GB`, `4096`.
fn bytes(given: &str) -> Result<u64, Refusal> {
    const UNITS: [(&str, u64); 9] = [
        ("kib", 1 << 10),
        ("mib", 1 << 20),
        ("gib", 1 << 30),
        ("kb", 1_000),
        ("mb", 1_000_000),
        ("gb", 1_000_000_000),
        ("k", 1 << 10),
        ("m", 1 << 20),
        ("b", 1),
    ];
    let refuse = || {
        let hint = Some("write it as `\"10MiB\"`, `\"512KiB\"` or a number of bytes".to_owned());
        (ProblemCode::BadValue, format!("`{given}` is not a size"), hint)
    };
    let lower = given.trim().to_ascii_lowercase();
    let unit = UNITS.iter().find_map(|(unit, factor)| Some((lower.strip_suffix(unit)?, *factor)));
    let (digits, factor) = unit.unwrap_or((&lower, 1));
    let number: u64 = digits.trim().parse().map_err(|_| refuse())?;
    number.checked_mul(factor).ok_or_else(refuse)
}

fn bad(told: impl Into<String>) -> Refusal {
    (ProblemCode::BadValue, told.into(), None)
}

fn word(given: &str, known: &[&str]) -> Refusal {
    (ProblemCode::BadValue, format!("`{given}` means nothing here"), nearest(given, known.iter().copied()))
}
