//! The benchmark: what fast means, as ratios measured side by side in one run on one machine.
//!
//! ```text
//!  workload ─► pair 1: cis, ninja, make ─► pair 2: ninja, make, cis ─► … ─► ratios of each pair ─► median
//! ```
//!
//! A single time on a shared machine says little; two times taken one after the other say how they compare. Each
//! pair gives one ratio, and the figure is the median of the ratios.
//!
//! | module | what lives there |
//! |---|---|
//! | [`shape`] | the graphs, and how each tool's file says them |
//! | [`contest`] | interleaved pairs and their ratios |
//! | [`bed`] | a place to run in, and running one tool once |
//! | [`process`] | what `/proc` knows of a process |
//! | [`machine`] | what the figures depend on: cores, kernel, pressure, fdatasync |
//! | [`report`] | rows, bars, and the page |
//! | [`versus`] | W0 to W3 |
//! | [`against`] | the same by another `cis` |
//! | [`served`], [`wire`] | a node to call, and calling it |
//! | [`agents`] | W4: agents over HTTP |
//! | [`reads`] | W5: status reads |
//! | [`idle`] | a node that has nothing to do, and those who wait for it |
//! | [`recovery`] | a node that was killed, with a long history |
//! | [`history`], [`growth`] | W6: a store with a million finished tasks, and what it slows down |
//! | [`claims`] | W6: how long a claim takes behind tasks it may not take |
//! | [`size`] | W7: a hundred thousand tasks |

mod against;
mod agents;
mod bed;
mod claims;
mod contest;
mod growth;
mod history;
mod idle;
mod machine;
mod process;
mod reads;
mod recovery;
mod report;
mod served;
mod shape;
mod size;
mod versus;
mod wire;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;

use bed::Bed;
use report::{Report, Row};

/// Started by `cargo xtask bench`, which builds what this measures.
#[derive(Debug, Parser)]
struct Options {
    #[arg(long)]
    cis: PathBuf,
    #[arg(long)]
    root: PathBuf,
    #[arg(long)]
    cache: PathBuf,
    #[arg(long)]
    pairs: u32,
    #[arg(long)]
    only: Vec<String>,
    #[arg(long)]
    smoke: bool,
    /// Another `cis` to compare with
    #[arg(long)]
    against: Option<PathBuf>,
}

/// A workload by its name.
type Workload = (&'static str, fn(&Bed) -> Result<Vec<Row>>);

/// All of them, in the order they run.
const WORKLOADS: [Workload; 10] = [
    ("W0", versus::own_share),
    ("W1", versus::wide),
    ("W2", versus::chain),
    ("W3", versus::layers),
    ("W4", agents::agents),
    ("W5", reads::reads),
    ("idle", idle::idle),
    ("recovery", recovery::recovery),
    ("W6", growth::growth),
    ("W7", size::size),
];

fn main() -> ExitCode {
    if std::env::args().any(|arg| arg == served::HELLO) {
        return served::hello();
    }
    match measure(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<()> {
    if let Some(old) = &options.against {
        return against::compare(Bed::make(options)?, Bed::make_with(options, old)?, &options.only);
    }
    let wanted = wanted(&options.only)?;
    let bed = Bed::make(options)?;
    let mut report = Report::begin(&bed)?;
    for (name, workload) in wanted {
        eprintln!("{name} …");
        let rows = workload(&bed).with_context(|| format!("{name} could not be measured"))?;
        for row in &rows {
            println!("{}", row.line());
        }
        report.add(rows);
    }
    println!("\n{}", report.page());
    println!("{}", report.verdict());
    if !options.smoke && options.only.is_empty() {
        let page = options.root.join("docs/benchmarks.md");
        fs::write(&page, report.page()).with_context(|| format!("cannot write `{}`", page.display()))?;
        println!("written to docs/benchmarks.md");
    }
    Ok(())
}

fn wanted(only: &[String]) -> Result<Vec<Workload>> {
    let known = |name: &String| WORKLOADS.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
    if let Some(unknown) = only.iter().find(|name| !known(name)) {
        let names = WORKLOADS.map(|(name, _)| name).join(", ");
        bail!("no workload `{unknown}`; there are {names}");
    }
    let chosen = |name: &str| only.is_empty() || only.iter().any(|wanted| wanted.eq_ignore_ascii_case(name));
    Ok(WORKLOADS.into_iter().filter(|(name, _)| chosen(name)).collect())
}
