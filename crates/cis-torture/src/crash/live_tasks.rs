//! The node is killed while a hundred tasks live: they notice nothing, and nothing of them is lost or done twice.
//!
//! Each round is a run of its own on the same data directory. Its tasks say that they are up and print; then the node is
//! killed. While nobody coordinates, all print more and half of them end. A new node is started, and the rest end.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use cis_runner::log::{self, Entry, Stream};
use cis_store::Reader;
use serde_json::{Value, json};

use super::fifo::Fifo;
use super::victim::{PATIENCE, Victim};
use super::{conclude, count, wrong_in_the_end};
use crate::chance::Chance;
use crate::clock::Stopwatch;
use crate::{Dose, Finding};

const TASKS: usize = 100;
/// Lines that each task prints on each of its two streams before the kill, and again after it.
const LINES: usize = 100;

/// Where a round's tasks report and wait.
struct Gates {
    up: Fifo,
    print: Fifo,
    end: Fifo,
}

/// Kills the node `rounds` times, or until the time is over.
pub fn run(dose: &Dose) -> Result<Finding> {
    let slots = u32::try_from(TASKS)?;
    let mut victim = Victim::start(slots)?;
    let (watch, mut chance) = (Stopwatch::start(), Chance::new(dose.seed));
    let (mut wrong, mut kills, mut bytes) = (Vec::new(), 0, 0);
    while wrong.is_empty() && watch.lets(kills as u64, dose) {
        let dag = format!("round-{kills}");
        let ended_alone = 1 + chance.index(TASKS - 1);
        let judged = round(&mut victim, &dag, ended_alone).and_then(|()| judge(&victim, &dag));
        let (told, printed) = judged.unwrap_or_else(|e| (vec![format!("{dag}: {e:#}")], 0));
        wrong.extend(told);
        kills += 1;
        bytes += printed;
    }
    if wrong.is_empty() {
        wrong = wrong_in_the_end(&mut victim)?;
    }
    let mut finding = Finding::default();
    count(&mut finding, "node killed under 100 live tasks", kills);
    count(&mut finding, "tasks", kills * TASKS);
    count(&mut finding, "bytes of log compared", bytes);
    conclude(&mut finding, dose.seed, wrong, &mut victim);
    Ok(finding)
}

fn round(victim: &mut Victim, dag: &str, ended_alone: usize) -> Result<()> {
    let fifo = |name: &str| Fifo::new(&victim.path(&format!("{dag}.{name}")));
    let gates = Gates { up: fifo("up")?, print: fifo("print")?, end: fifo("end")? };
    victim.run(&definition(dag, &victim.path("")))?;
    gates.up.lines(TASKS, PATIENCE).context("tasks that are up")?;
    victim.fall()?;
    gates.print.let_through(TASKS)?;
    gates.up.lines(TASKS, PATIENCE).context("tasks that printed while nobody coordinated")?;
    gates.end.let_through(ended_alone)?;
    gates.up.lines(ended_alone, PATIENCE).context("tasks that end while nobody coordinates")?;
    victim.rise()?;
    gates.end.let_through(TASKS - ended_alone)?;
    victim.wait_over(dag)?;
    for name in ["up", "print", "end"] {
        std::fs::remove_file(victim.path(&format!("{dag}.{name}")))?;
    }
    Ok(())
}

fn definition(dag: &str, dir: &Path) -> Value {
    let at = |name: &str| format!("'{}{dag}.{name}'", dir.display());
    let (up, print, end, ran) = (at("up"), at("print"), at("end"), at("ran"));
    let lines = |from: usize| {
        let to = from + LINES - 1;
        format!(
            "for i in $(seq {from} {to}); do echo \"$CIS_TASK_ID says $i\"; echo \"$CIS_TASK_ID notes $i\" >&2; done"
        )
    };
    let command = format!(
        "echo \"$CIS_TASK_ID\" >> {ran}; {}; echo up > {up}; read -r _ < {print}; {}; echo on > {up}; read -r _ < {end}; \
         echo over > {up}",
        lines(1),
        lines(LINES + 1)
    );
    let task = |n| json!({"id": format!("t{n}"), "command": command});
    json!({"dag_id": dag, "tasks": (0..TASKS).map(task).collect::<Vec<_>>()})
}

/// What is wrong with a round, and how many bytes of log there are.
fn judge(victim: &Victim, dag: &str) -> Result<(Vec<String>, usize)> {
    let mut wrong = Vec::new();
    let mut ran: BTreeMap<String, usize> = BTreeMap::new();
    for line in std::fs::read_to_string(victim.path(&format!("{dag}.ran")))?.lines() {
        *ran.entry(line.to_owned()).or_default() += 1;
    }
    let store = Reader::open(&victim.data().join("dag.db"))?;
    let key = store.dag(dag, None)?.first().context("the DAG is gone")?.key;
    let run = store.runs(Some(key), 1)?.into_iter().next().context("the run is gone")?;
    let mut bytes = 0;
    for task in store.tasks(&run, &[], u32::MAX)? {
        let times = ran.get(&task.task_id).copied().unwrap_or(0);
        if (task.status.word(), task.attempt, times) != ("completed", 1, 1) {
            wrong.push(format!("{dag}: ran {times} times: {task:?}"));
        }
        let name = format!("{}/{}.{}.log", run.key.0, task.execution_id.0, task.attempt);
        for (stream, verb) in [(Stream::Stdout, "says"), (Stream::Stderr, "notes")] {
            let printed = printed(&victim.data().join("logs").join(&name), stream)?;
            let whole: String = (1..=2 * LINES).map(|i| format!("{} {verb} {i}\n", task.task_id)).collect();
            if printed != whole.as_bytes() {
                let (has, wants) = (printed.len(), whole.len());
                wrong.push(format!(
                    "{dag}/{}: {has} bytes of {stream:?}, not {wants}, or others",
                    task.task_id
                ));
            }
            bytes += printed.len();
        }
    }
    Ok((wrong, bytes))
}

fn printed(path: &Path, stream: Stream) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for entry in log::read(path)? {
        match entry? {
            Entry::Record(record) if record.stream == stream => bytes.extend(record.bytes),
            _ => {}
        }
    }
    Ok(bytes)
}
