//! The judge: says what must not be, from what clients wrote down, what tasks wrote down, and what the store holds in the
//! end. It knows nothing of how the node works, only what was promised.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::business::{Kind, ONCE_ONLY, TRIES};
use super::evidence::{Evidence, Run, Task};
use super::record::{Answer, Ask, Entry};

/// What an attempt says of itself whose runner was killed.
const INTERRUPTED: &str = "the runner was killed";

const ENDS: [&str; 4] = ["completed", "failed", "cancelled", "timed_out"];

/// Everything that must not be, each with the history of what it is about.
pub(super) fn violations(evidence: &Evidence) -> Vec<String> {
    let case = Case::of(evidence);
    let mut found: Vec<String> =
        evidence.entries.iter().filter_map(|entry| case.broken_word(entry)).collect();
    found.extend(case.runs());
    found.extend(case.claims());
    found.extend(case.late_words());
    found.extend(case.reads());
    found.extend(case.attempts());
    found
}

/// The evidence, and where to find things in it.
struct Case<'a> {
    evidence: &'a Evidence,
    runs: HashMap<&'a str, &'a Run>,
    tasks: HashMap<i64, (&'a Run, &'a Task)>,
    /// The DAG of each run that the store has, or a client was told of.
    dags: HashMap<&'a str, &'a str>,
    revisions: HashSet<(&'a str, &'a str)>,
    /// Who won which fence of an execution.
    won: BTreeMap<i64, Vec<(i64, &'a Entry)>>,
    runner_kills: u32,
}

impl<'a> Case<'a> {
    fn of(evidence: &'a Evidence) -> Self {
        let runs: HashMap<&str, &Run> = evidence.runs.iter().map(|run| (run.id.as_str(), run)).collect();
        let all = evidence.runs.iter().flat_map(|run| run.tasks.iter().map(move |task| (run, task)));
        let tasks = all.map(|(run, task)| (task.execution, (run, task))).collect();
        let mut dags: HashMap<&str, &str> =
            runs.values().map(|run| (run.id.as_str(), run.dag.as_str())).collect();
        let mut won: BTreeMap<i64, Vec<(i64, &Entry)>> = BTreeMap::new();
        for entry in &evidence.entries {
            if let Some((dag, _)) = entry.ask.wants_run() {
                dags.extend(entry.run().map(|run| (run, dag)));
            }
            for (execution, fence) in entry.claimed() {
                won.entry(execution).or_default().push((fence, entry));
            }
        }
        let known = evidence.revisions.iter();
        let revisions = known.map(|known| (known.dag.as_str(), known.content_hash.as_str())).collect();
        let runner_kills = evidence.kills.iter().filter(|kill| kill.runner).count();
        let runner_kills = u32::try_from(runner_kills).unwrap_or(u32::MAX);
        Self { evidence, runs, tasks, dags, revisions, won, runner_kills }
    }

    /// What a client was told is done is done, and what nobody has a reason to refuse is not refused.
    fn broken_word(&self, entry: &Entry) -> Option<String> {
        let refused = matches!(entry.answer, Answer::Refused { status, .. } if status < 500 && status != 429);
        let wanted = matches!(entry.ask, Ask::Publish { .. }) || entry.ask.wants_run().is_some();
        if refused && wanted {
            return Some(self.tell("refused without a reason", entry));
        }
        let told = entry.told()?;
        let kept = match &entry.ask {
            Ask::Publish { dag } => {
                told["content_hash"].as_str().is_some_and(|hash| self.revisions.contains(&(dag, hash)))
            }
            Ask::Confirm { dag } | Ask::Again { dag, .. } => {
                entry.run().and_then(|id| self.runs.get(id)).is_some_and(|run| run.dag == *dag)
            }
            Ask::Cancel { run } => self.runs.get(run.as_str()).is_some_and(|run| was_stopped(run)),
            Ask::Approve { run, input } => {
                let asked = |run: &&Run| run.tasks.iter().any(|task| task.id == "ask" && task.has(input));
                self.runs.get(run.as_str()).is_some_and(asked)
            }
            Ask::Complete { execution, outputs, .. } => {
                self.tasks.get(execution).is_some_and(|(_, task)| task.has(outputs))
            }
            _ => true,
        };
        (!kept).then(|| self.tell("an acknowledged write is lost", entry))
    }

    /// As many runs as were asked for, each of them over, and as it must be.
    fn runs(&self) -> Vec<String> {
        let mut asked: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut told: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
        for entry in &self.evidence.entries {
            let Some((dag, key)) = entry.ask.wants_run() else { continue };
            asked.entry(dag).or_default().insert(key);
            told.entry((dag, key)).or_default().extend(entry.run());
        }
        let mut found = Vec::new();
        for ((dag, _), runs) in told.iter().filter(|(_, runs)| runs.len() > 1) {
            found.push(self.tell_of(&format!("one request, two runs: {runs:?}"), dag));
        }
        let mut there: BTreeMap<&str, usize> = BTreeMap::new();
        for run in &self.evidence.runs {
            *there.entry(&run.dag).or_default() += 1;
            found.extend(self.wrong_end(run));
        }
        for (dag, count) in there {
            let wanted = asked.get(dag).map_or(0, BTreeSet::len);
            if count > wanted {
                found.push(self.tell_of(&format!("{count} runs, {wanted} were asked for"), dag));
            }
        }
        found
    }

    fn wrong_end(&self, run: &Run) -> Option<String> {
        let Run { id, dag, status, tasks } = run;
        if !ENDS.contains(&status.as_str()) {
            return Some(self.tell_of(&format!("stuck: {id} is {status}"), dag));
        }
        let as_it_should = Kind::of(dag).is_some_and(|kind| kind.ends().contains(&status.as_str()));
        let by_the_runner = self.runner_kills > 0 && tasks.iter().any(was_interrupted);
        (!as_it_should && !by_the_runner).then(|| self.tell_of(&format!("{id} must not be {status}"), dag))
    }

    /// Each fence of a task has one winner, and fences rise.
    fn claims(&self) -> Vec<String> {
        let mut found = Vec::new();
        for wins in self.won.values() {
            for (fence, entry) in wins {
                let is_double = |(other, by): &(i64, &Entry)| other == fence && by.ask != entry.ask;
                let is_later = |(other, by): &(i64, &Entry)| {
                    other <= fence && entry.ended < by.sent && by.ask != entry.ask
                };
                if wins.iter().any(is_double) {
                    found.push(self.tell(&format!("fence {fence} was won twice"), entry));
                } else if wins.iter().any(is_later) {
                    found.push(self.tell(&format!("a later fence is not above {fence}"), entry));
                }
            }
        }
        found
    }

    /// Nobody is heard on a claim after somebody else has won a later one; but the same result again is answered the same.
    fn late_words(&self) -> Vec<String> {
        let is_stale = |entry: &&Entry| {
            let Some((execution, fence)) = entry.ask.attempt().filter(|_| entry.told().is_some()) else {
                return false;
            };
            let wins = self.won.get(&execution).into_iter().flatten();
            let mut since = wins.filter(|(later, by)| *later > fence && by.ended < entry.sent);
            since.next().is_some() && !self.was_said_before(entry)
        };
        let stale = self.evidence.entries.iter().filter(is_stale);
        stale.map(|entry| self.tell("a stale fence was heard", entry)).collect()
    }

    fn was_said_before(&self, entry: &Entry) -> bool {
        let is_last_word = !matches!(entry.ask, Ask::Heartbeat { .. });
        is_last_word
            && self.evidence.entries.iter().any(|other| other.ask == entry.ask && other.sent < entry.sent)
    }

    /// What was read once is not unread: what is there stays there, and what is over stays over.
    fn reads(&self) -> Vec<String> {
        let mut of_dag: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
        for entry in &self.evidence.entries {
            if let Ask::Publish { dag } | Ask::Status { dag } = &entry.ask {
                of_dag.entry(dag).or_default().push(entry);
            }
        }
        let mut found = Vec::new();
        for (dag, mut entries) in of_dag {
            entries.sort_by_key(|entry| entry.ended);
            // What everybody can know from here on: it is there; it has ended like this.
            let (mut there, mut over) = (None, None);
            for entry in entries {
                let since = |known: Option<&Entry>| known.is_some_and(|known| known.ended < entry.sent);
                if since(there) && matches!(entry.answer, Answer::Refused { status: 404, .. }) {
                    found.push(self.tell("what was there is not found", entry));
                }
                // One that is run again begins anew.
                let status = entry.status().filter(|_| Kind::of(dag) != Some(Kind::Twice));
                if since(over) && status.is_some() && status != over.and_then(Entry::status) {
                    found.push(self.tell("what was over is not", entry));
                }
                there = there.or(entry.told().map(|_| entry));
                over = over.or(status.filter(|status| ENDS.contains(status)).map(|_| entry));
            }
        }
        found
    }

    /// What tasks did themselves: each attempt once, as many as their policy allows, none that the store does not know; and
    /// what completed did its work to the end.
    fn attempts(&self) -> Vec<String> {
        let mut began: BTreeMap<(&str, &str), Vec<u32>> = BTreeMap::new();
        let mut ended: HashSet<(&str, &str, u32)> = HashSet::new();
        for line in &self.evidence.lines {
            match line.began {
                true => began.entry((&line.run, &line.task)).or_default().push(line.attempt),
                false => drop(ended.insert((&line.run, &line.task, line.attempt))),
            }
        }
        let mut found = Vec::new();
        for ((run_id, task_id), attempts) in &began {
            let distinct: BTreeSet<&u32> = attempts.iter().collect();
            let run = self.runs.get(run_id);
            let what = match run.and_then(|run| run.tasks.iter().find(|task| task.id == *task_id)) {
                None => "a task ran that the store does not know",
                Some(_) if distinct.len() < attempts.len() => "one attempt was started twice",
                Some(task) if attempts.iter().any(|attempt| *attempt > task.attempt) => {
                    "an attempt is not recorded"
                }
                Some(_) if attempts.len() > self.attempts_allowed(task_id) => {
                    "it ran more often than its policy allows"
                }
                Some(_) => continue,
            };
            let what = format!("{what}: `{task_id}` of {run_id}, attempts {attempts:?}");
            found.push(self.tell_of(&what, self.dags.get(run_id).copied().unwrap_or_default()));
        }
        for (run, task) in self.tasks.values() {
            let writes = Kind::of(&run.dag) != Some(Kind::External) && task.id != "ask";
            let done = ended.contains(&(run.id.as_str(), task.id.as_str(), task.attempt));
            if writes && task.status == "completed" && !done {
                found.push(
                    self.tell_of(&format!("`{}` of {} completed without its end", task.id, run.id), &run.dag),
                );
            }
        }
        found
    }

    fn attempts_allowed(&self, task: &str) -> usize {
        let allowed = match task {
            task if ONCE_ONLY.contains(&task) => 1,
            "retried" => TRIES,
            // Each runner that is killed may cost it one.
            _ => 1 + self.runner_kills,
        };
        usize::try_from(allowed).unwrap_or(usize::MAX)
    }

    fn tell(&self, what: &str, entry: &Entry) -> String {
        self.tell_of(&format!("{what}: {entry}"), self.dags_of(entry).first().copied().unwrap_or_default())
    }

    /// What is wrong, and all that is known of the DAG it is about.
    fn tell_of(&self, what: &str, dag: &str) -> String {
        let Evidence { entries, runs, lines, .. } = self.evidence;
        let mut history: Vec<&Entry> =
            entries.iter().filter(|entry| self.dags_of(entry).contains(&dag)).collect();
        history.sort_by_key(|entry| entry.sent);
        let history = history.iter().map(|entry| format!("\n      {entry}"));
        let runs = runs.iter().filter(|run| run.dag == dag).map(|run| format!("\n      in the end: {run:?}"));
        let is_of = |run: &str| self.dags.get(run) == Some(&dag);
        let lines = lines.iter().filter(|line| is_of(&line.run)).map(|line| format!("\n      {line:?}"));
        std::iter::once(what.to_owned()).chain(history).chain(runs).chain(lines).collect()
    }

    /// The DAGs that a request was about.
    fn dags_of<'e>(&'e self, entry: &'e Entry) -> Vec<&'e str> {
        let of_execution = |execution| self.tasks.get(&execution).map(|(run, _)| run.dag.as_str());
        match &entry.ask {
            Ask::Publish { dag } | Ask::Confirm { dag } | Ask::Again { dag, .. } | Ask::Status { dag } => {
                vec![dag]
            }
            Ask::Cancel { run } | Ask::Approve { run, .. } => {
                self.dags.get(run.as_str()).copied().into_iter().collect()
            }
            Ask::Claim { .. } => {
                entry.claimed().filter_map(|(execution, _)| of_execution(execution)).collect()
            }
            other => other.attempt().and_then(|(execution, _)| of_execution(execution)).into_iter().collect(),
        }
    }
}

fn was_interrupted(task: &Task) -> bool {
    task.cause.as_deref() == Some(INTERRUPTED)
}

/// A run that was told to stop has, unless what it ran had been interrupted before.
fn was_stopped(run: &Run) -> bool {
    run.status == "cancelled" || (run.status == "failed" && run.tasks.iter().any(was_interrupted))
}

#[cfg(test)]
mod tests;
