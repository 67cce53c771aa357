//! A place to run in, and running one tool once.
//!
//! Every run starts from nothing: a fresh directory, no earlier log or database, earlier writes on the disk. Only
//! the run itself is timed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use xtask::clock::Stopwatch;
use xtask::run::shown;

use crate::{Options, machine, process};

/// Lines of a failed run that are shown.
const LAST_LINES: usize = 20;

/// Where everything happens, and how much of it.
#[derive(Debug)]
pub(crate) struct Bed {
    cis: PathBuf,
    root: PathBuf,
    dir: TempDir,
    cache: PathBuf,
    pairs: u32,
    smoke: bool,
    used: AtomicU32,
}

impl Bed {
    pub(crate) fn make(options: &Options) -> Result<Self> {
        Self::make_with(options, &options.cis)
    }

    /// The same for another `cis`.
    pub(crate) fn make_with(options: &Options, cis: &Path) -> Result<Self> {
        fs::create_dir_all(&options.cache)?;
        // Not `/tmp`, which may be memory: what is measured is a data directory on a disk.
        let cache = options.cache.canonicalize()?;
        let dir = tempfile::Builder::new().prefix("run-").tempdir_in(&cache)?;
        fs::create_dir(dir.path().join("home"))?;
        Ok(Self {
            cis: cis.canonicalize().with_context(|| format!("no program `{}`", cis.display()))?,
            root: options.root.clone(),
            dir,
            cache,
            pairs: if options.smoke { 1 } else { options.pairs },
            smoke: options.smoke,
            used: AtomicU32::new(0),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Where what is costly to make is kept for the next time; nothing is kept of a small try.
    pub(crate) fn cache(&self) -> &Path {
        if self.smoke { self.path() } else { &self.cache }
    }

    /// The checkout.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn pairs(&self) -> u32 {
        self.pairs
    }

    /// The size of a workload: the real one, or one that only shows that it works.
    pub(crate) fn size(&self, real: usize, small: usize) -> usize {
        if self.smoke { small } else { real }
    }

    /// A file with this text.
    pub(crate) fn file(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.path().join(name);
        fs::write(&path, text)?;
        Ok(path)
    }

    /// An empty directory nobody has used.
    pub(crate) fn fresh(&self) -> Result<PathBuf> {
        let path = self.path().join(format!("fresh-{}", self.used.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir(&path)?;
        Ok(path)
    }

    /// `cis --data-dir …`, with nobody's configuration.
    pub(crate) fn cis(&self, data_dir: &Path) -> Command {
        let mut command = Command::new(&self.cis);
        command.env("CIS_HOME", self.path().join("home")).current_dir(self.path());
        command.arg("--data-dir").arg(data_dir);
        command
    }

    /// `cis dag run FILE` on a data directory.
    pub(crate) fn cis_run(&self, data_dir: &Path, file: &Path, durability: &str) -> Command {
        let mut command = self.cis(data_dir);
        command.args(["dag", "run"]).arg(file).args(["--durability", durability]);
        command
    }

    /// The seconds `cis` takes for `file` on a data directory that is not there yet.
    pub(crate) fn time_cis(&self, file: &Path, durability: &str) -> Result<f64> {
        let data_dir = self.fresh()?;
        let seconds = self.time_cis_on(&data_dir, file, durability)?;
        self.drop_dir(&data_dir);
        Ok(seconds)
    }

    /// The same on one that is.
    pub(crate) fn time_cis_on(&self, data_dir: &Path, file: &Path, durability: &str) -> Result<f64> {
        let seconds = self.time(&mut self.cis_run(data_dir, file, durability));
        process::end_runner_of(data_dir)?;
        seconds
    }

    /// The seconds ninja takes for `file`.
    pub(crate) fn time_ninja(&self, file: &Path) -> Result<f64> {
        self.time_builder("ninja", file)
    }

    /// The seconds make takes for `file`.
    pub(crate) fn time_make(&self, file: &Path) -> Result<f64> {
        self.time_builder("make", file)
    }

    fn time_builder(&self, program: &str, file: &Path) -> Result<f64> {
        let dir = self.fresh()?;
        let mut command = Command::new(program);
        command.arg("-j").arg(machine::cores().to_string()).arg("-f").arg(file).current_dir(&dir);
        let seconds = self.time(&mut command)?;
        self.drop_dir(&dir);
        Ok(seconds)
    }

    /// The seconds a command takes, from before it is started until it has ended.
    pub(crate) fn time(&self, command: &mut Command) -> Result<f64> {
        self.prepare(command)?;
        let watch = Stopwatch::start();
        let child = self.start(command)?;
        self.finish(child, command)?;
        Ok(watch.seconds())
    }

    /// Lets what earlier runs wrote reach the disk, and sends the output where everyone's goes.
    pub(crate) fn prepare(&self, command: &mut Command) -> Result<()> {
        let output = File::create(self.output()).context("cannot make a file for the output")?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        rustix::fs::sync();
        Ok(())
    }

    pub(crate) fn start(&self, command: &mut Command) -> Result<Child> {
        command.spawn().with_context(|| format!("cannot start `{}`", shown(command)))
    }

    /// Waits for a child; an error if it did not do what it should.
    pub(crate) fn finish(&self, mut child: Child, command: &Command) -> Result<()> {
        let status = child.wait()?;
        if status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&fs::read(self.output())?).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
        bail!("`{}` failed: {status}\n{last}", shown(command));
    }

    fn output(&self) -> PathBuf {
        self.path().join("output.txt")
    }

    /// Makes room. What cannot be removed now goes with the whole bed.
    pub(crate) fn drop_dir(&self, dir: &Path) {
        let _ = fs::remove_dir_all(dir);
    }
}
