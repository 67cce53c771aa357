//! The command line of the machines: which of them, from which seed, for how long.

use std::process::ExitCode;
use std::time::Duration;

use cis_torture::{Dose, Finding, crash, full, power, siege, sim};
use clap::{Parser, Subcommand, ValueEnum};

/// Break CIS on purpose, and check that it holds.
#[derive(Debug, Parser)]
struct Cli {
    /// Minutes for all machines together, shared evenly
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// Where all randomness comes from; the same seed gives the same blows
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only these machines
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Machine>,
    #[command(subcommand)]
    part: Option<Part>,
}

/// What a machine starts as a process of its own.
#[derive(Debug, Clone, Copy, Subcommand)]
enum Part {
    /// The attackers of a siege, by the plan on stdin
    #[command(hide = true)]
    Attack,
}

/// What can be done to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Machine {
    /// Kill node and runner under mixed load
    Storm,
    /// Mixed load, and nothing is killed: what grows, and what gets in the way
    Load,
    /// Kill the node under a hundred live tasks
    LiveTasks,
    /// Kill the runner under tasks of every policy
    RunnerKilled,
    /// Power loss between a write and its sync
    Power,
    /// A disk that is full, and has room again
    Full,
    /// Attack a node beside callers that behave well
    Siege,
    /// Worlds that are made up from a seed, with everything that can go wrong in them
    Sim,
}

impl Machine {
    fn run(self, dose: &Dose) -> anyhow::Result<Finding> {
        match self {
            Self::Storm => crash::storm::run(dose),
            Self::Load => crash::load::run(dose),
            Self::LiveTasks => crash::live_tasks::run(dose),
            Self::RunnerKilled => crash::runner_killed::run(dose),
            Self::Power => power::run(dose),
            Self::Full => full::run(dose),
            Self::Siege => siege::record(dose),
            Self::Sim => sim::run(dose),
        }
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    if let Some(Part::Attack) = cli.part {
        siege::attack()?;
        return Ok(ExitCode::SUCCESS);
    }
    let machines: Vec<Machine> = match cli.only.is_empty() {
        true => Machine::value_variants().to_vec(),
        false => cli.only,
    };
    let each = Duration::from_secs(cli.minutes * 60) / u32::try_from(machines.len().max(1))?;
    let mut clean = true;
    for machine in machines {
        println!("── {machine:?}, seed {}", cli.seed);
        let finding = machine.run(&Dose { seed: cli.seed, rounds: u64::MAX, time: Some(each) })?;
        print!("{finding}");
        clean &= finding.is_clean();
    }
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
