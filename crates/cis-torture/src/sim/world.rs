//! One world: everything there is, and chance that says what happens next. First anything may go wrong, then nothing
//! does, and everything must come to its end.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use cis_api::node::CoordinatorKind;
use cis_core::error::{ErrorCode, Refusal};
use cis_core::id::ExecutionId;
use cis_core::notice::Wanted;
use cis_engine::context::Context;
use cis_engine::coordinator::{Handle, Limits, Options};
use cis_engine::data_dir::DataDir;
use cis_engine::machine::Machine as _;
use cis_runner::protocol::AttemptKey;
use cis_store::{Durability, Reader, SqliteStore, check};
use rusqlite::{Connection, OpenFlags};

use super::client::{self, Client};
use super::judge::{Judge, Moment};
use super::machine::MadeUp;
use super::node::{HandingOver, Life, Mail};
use super::runner::{Line, Remains, Runner, Until};
use super::sketch::Sketch;
use super::trace::Trace;
use super::weather::{Fault, Weather};
use super::worker::{Around, Worker};
use super::{Tally, Verdict};
use crate::chance::Chance;
use crate::life::story;

/// Things that happen while anything may go wrong.
const STEPS: u64 = 220;

/// Old coordinators that may be about at once.
const OLD_MAX: usize = 2;

/// Rounds in which everything does what it can, before a world that has not come to its end is called stuck. Time goes
/// faster while nothing happens, so this is more than a day.
const ROUNDS_MAX: u32 = 3_000;

/// The longest a round takes.
const ROUND_MS_MAX: i64 = 30_000;

/// Everything there is.
pub(super) struct World {
    chance: Chance,
    machine: MadeUp,
    options: Options,
    store: Option<SqliteStore>,
    /// For reading: whatever dies, this stays.
    rows: Connection,
    current: Option<Life>,
    /// Coordinators that were replaced, and do not know it yet.
    old: Vec<Life>,
    runner: Option<Runner>,
    remains: Remains,
    workers: Vec<Worker>,
    clients: Vec<Client>,
    handing_over: Option<HandingOver>,
    mail: Mail,
    judge: Judge,
    weather: Weather,
    trace: Trace,
    tally: Tally,
    calm: bool,
}

impl World {
    /// Lives one world in `dir`, and says what came of it.
    pub(super) fn live(seed: u64, dir: &Path) -> anyhow::Result<Verdict> {
        let mut world = Self::begin(seed, dir)?;
        let mut steps = 0..STEPS;
        // What follows on something wrong tells nothing more, and hides how it came to it.
        while world.judge.wrong.is_empty() && steps.next().is_some() {
            world.step()?;
        }
        world.come_to_an_end()?;
        world.judged()
    }

    fn begin(seed: u64, dir: &Path) -> anyhow::Result<Self> {
        let mut chance = Chance::new(seed);
        let data_dir = DataDir::create(dir)?;
        Context::of_node(&[], &[], Vec::new()).save(&data_dir.node_context(), Durability::Process)?;
        let (mut judge, mut clients) = (Judge::default(), Vec::new());
        for number in 0..1 + chance.below(4) as usize {
            let sketch = Sketch::by_chance(number, &mut chance);
            clients.push(Client::new(number, &sketch)?);
            judge.knows(sketch);
        }
        let options = Options {
            data_dir,
            kind: CoordinatorKind::Background,
            exe: "/nowhere".into(),
            config: None,
            slots: 1 + chance.below(3) as u32,
            durability: Durability::Process,
            limits: Limits::default(),
            runs_at_once: false,
            address: None,
            notices: Wanted::default(),
        };
        let machine = MadeUp::new(chance.fork(1));
        let store = open(&options.data_dir, &machine)?;
        let database = options.data_dir.database();
        // A seed is a world to the last byte: what a store draws for itself is put in its place.
        Connection::open(&database)?.execute("UPDATE secrets SET value = zeroblob(32)", [])?;
        let rows = Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        Ok(Self {
            machine,
            workers: (0..1 + chance.below(3) as usize).map(Worker::new).collect(),
            weather: Weather::by_chance(&mut chance),
            chance,
            options,
            store: Some(store),
            rows,
            current: None,
            old: Vec::new(),
            runner: None,
            remains: Remains::default(),
            clients,
            handing_over: None,
            mail: Mail::default(),
            judge,
            trace: Trace::new(),
            tally: Tally::default(),
            calm: false,
        })
    }

    /// Something happens.
    fn step(&mut self) -> anyhow::Result<()> {
        if let Some(fault) = self.weather.next(&mut self.chance) {
            return self.suffer(fault);
        }
        match self.chance.below(34) {
            0..9 => self.coordinate()?,
            9..13 => self.haunt(),
            13..16 => self.hear_coordinator(),
            16..19 => self.end_turn(Until::End),
            19..22 => self.deliver(),
            22..24 => self.look_after_processes(),
            24..27 => self.work(),
            27..30 => self.ask()?,
            30..32 => self.bring_news(),
            _ => {
                let ms = match self.chance.below(8) {
                    0 => self.chance.below(30_000),
                    1..4 => self.chance.below(3_000),
                    _ => self.chance.below(200),
                };
                self.pass(ms.cast_signed());
            }
        }
        Ok(())
    }

    fn moment(&self) -> Moment {
        Moment { boot: self.machine.boot_ms(), wall: self.machine.wall_ms() }
    }

    fn handle(&self) -> Option<Handle> {
        self.current.as_ref().and_then(Life::handle)
    }

    fn pass(&mut self, ms: i64) {
        self.machine.pass(ms);
        self.judge.time_passed(self.machine.boot_ms());
        if !self.calm {
            self.trace.tell(format!("{ms} ms go by"));
        }
    }

    /// The coordinator goes on; if there is none, one begins.
    fn coordinate(&mut self) -> anyhow::Result<()> {
        if self.current.is_none() {
            let store = match self.store.take() {
                Some(store) => store,
                None => open(&self.options.data_dir, &self.machine)?,
            };
            self.store = Some(store.clone());
            self.current = Some(Life::begin(store, self.options.clone(), self.machine.clone()));
            self.trace.tell("a coordinator begins".to_owned());
            self.tally.lives += 1;
        }
        let ended = self.current.as_mut().and_then(Life::go_on);
        let has_left = self.hear_of_hand_over();
        if let Some(ended) = ended {
            // An old one that was slow to begin has a later life than this one; and what it could not reach it says so of.
            let overtaken =
                |why: &Refusal| why.code == ErrorCode::LeaseExpired || why.message.contains("runner");
            let handed_over = has_left && ended.is_ok();
            self.tally.handed_over += u64::from(handed_over);
            if !(handed_over || ended.as_ref().is_err_and(overtaken)) {
                self.judge.finds(format!("the coordinator ended: {ended:?}"));
            }
            self.trace.tell(format!("the coordinator ends: {ended:?}"));
            self.end_coordinator(false);
        }
        Ok(())
    }

    /// Has the coordinator said that what runs is left to the next one?
    fn hear_of_hand_over(&mut self) -> bool {
        let Some(answer) = self.handing_over.as_mut().and_then(HandingOver::answer) else { return false };
        self.handing_over = None;
        self.trace.tell(format!("to hand over is answered: {answer:?}"));
        answer.is_ok()
    }

    /// An old coordinator goes on.
    fn haunt(&mut self) {
        let at = self.chance.below(self.old.len() as u64) as usize;
        if let Some(ended) = self.old.get_mut(at).and_then(Life::go_on) {
            self.trace.tell(format!("an old coordinator ends: {ended:?}"));
            self.old.remove(at);
        }
    }

    /// It is no more, or nobody knows it any more.
    fn end_coordinator(&mut self, replaced: bool) {
        self.handing_over = None;
        self.mail.is_lost();
        let current = self.current.take();
        if replaced {
            self.old.truncate(OLD_MAX - 1);
            self.old.extend(current);
            return;
        }
        // The process is gone: with it the store, and whoever else was in it.
        drop(current);
        self.old.clear();
        if let Some(store) = self.store.take() {
            store.close();
        }
    }

    fn end_runner(&mut self) {
        if let Some(runner) = self.runner.take() {
            runner.die(&mut self.chance);
        }
    }

    fn hear_coordinator(&mut self) {
        if self.machine.is_knocked() {
            if self.runner.is_none() {
                self.trace.tell("a runner begins".to_owned());
                self.runner = Some(Runner::begin(&self.remains));
            }
            let pipes = self.machine.knocking();
            self.runner.iter_mut().for_each(|runner| runner.accept(pipes.clone()));
        }
        if let Some(runner) = &mut self.runner {
            let heard = runner.hear(&self.machine, &mut self.remains, &mut self.chance);
            if !heard.is_empty() {
                self.trace.tell(format!("the runner hears {}", heard.join(", ")));
            }
        }
    }

    fn end_turn(&mut self, until: Until) {
        let Some(runner) = self.runner.as_mut().filter(|runner| runner.has_turn()) else { return };
        let (machine, chance) = (&self.machine, &mut self.chance);
        let started = runner.end_turn(until, machine, &mut self.remains, &mut self.judge, chance);
        self.tally.processes += started as u64;
        self.trace.tell(format!("the runner ends its turn ({until:?}), {started} start"));
    }

    fn deliver(&mut self) {
        let most = if self.calm { usize::MAX } else { 1 + self.chance.below(3) as usize };
        let delivered = self.runner.as_mut().map(|runner| runner.deliver(most)).unwrap_or_default();
        if !delivered.is_empty() {
            self.trace.tell(format!("the coordinator is told {}", delivered.join(", ")));
        }
    }

    fn look_after_processes(&mut self) {
        if let Some(runner) = &mut self.runner
            && runner.look(&self.machine, &mut self.remains, &mut self.judge)
        {
            self.trace.tell("the runner sees that something is over".to_owned());
        }
    }

    /// What workers and clients can reach, if there is anything.
    fn around(&mut self) -> Option<(Around<'_>, &mut Vec<Worker>, &mut Vec<Client>)> {
        let around = Around {
            store: self.store.as_ref()?,
            machine: &self.machine,
            mail: &mut self.mail,
            judge: &mut self.judge,
            chance: &mut self.chance,
            trace: &mut self.trace,
            calm: self.calm,
        };
        Some((around, &mut self.workers, &mut self.clients))
    }

    fn work(&mut self) {
        if self.handle().is_none() {
            return;
        }
        let others: Vec<AttemptKey> = self.workers.iter().flat_map(Worker::holds).collect();
        let at = self.chance.below(self.workers.len() as u64) as usize;
        if let Some((mut around, workers, _)) = self.around() {
            workers[at].act(&others, &mut around);
        }
    }

    fn ask(&mut self) -> anyhow::Result<()> {
        if self.handle().is_none() {
            return Ok(());
        }
        let at = self.chance.below(self.clients.len() as u64) as usize;
        let waiting = if self.calm || self.chance.one_in(3) { self.someone_waits()? } else { None };
        let Some((mut around, _, clients)) = self.around() else { return Ok(()) };
        match waiting {
            Some(execution) => client::approve(execution, &mut around),
            None => clients[at].act(&mut around),
        }
        Ok(())
    }

    fn someone_waits(&self) -> anyhow::Result<Option<ExecutionId>> {
        let waiting = "SELECT max(execution_id) FROM task_executions WHERE status = 'waiting'";
        let found: Option<i64> = self.rows.prepare_cached(waiting)?.query_row([], |row| row.get(0))?;
        Ok(found.map(ExecutionId))
    }

    fn bring_news(&mut self) {
        if let Some(handle) = self.handle() {
            self.mail.deliver(&handle);
        }
    }

    /// Something goes wrong.
    fn suffer(&mut self, fault: Fault) -> anyhow::Result<()> {
        self.tally.count(&fault);
        self.trace.tell(format!("FAULT {fault:?}"));
        match fault {
            Fault::CoordinatorDies => self.end_coordinator(false),
            Fault::CoordinatorReplaced => self.end_coordinator(true),
            Fault::CoordinatorHandsOver if self.handing_over.is_some() => {}
            Fault::CoordinatorHandsOver => self.handing_over = self.handle().map(HandingOver::ask),
            Fault::RunnerDies(until) => {
                self.end_turn(until);
                self.end_runner();
            }
            Fault::BothDie(until) => {
                self.end_turn(until);
                self.end_runner();
                self.end_coordinator(false);
            }
            Fault::Disconnect => {
                let (machine, remains) = (&self.machine, &mut self.remains);
                self.runner.iter_mut().for_each(|runner| runner.lose_connection(machine, remains));
            }
            Fault::ClockSet(ms) => {
                self.machine.set(ms);
                let is_unnoted = self.is_boot_unnoted()?;
                self.judge.clock_set(is_unnoted);
            }
            Fault::Sleep(ms) => {
                self.machine.sleep(ms);
                self.judge.time_passed(self.machine.boot_ms());
            }
            Fault::Restart { off_ms, journal_loses } => self.restart(off_ms, journal_loses),
        }
        Ok(())
    }

    /// Has no coordinator begun since the machine was restarted?
    fn is_boot_unnoted(&self) -> anyhow::Result<bool> {
        let noted = "SELECT count(*) FROM clock WHERE boot_id <> ?1";
        let mut statement = self.rows.prepare_cached(noted)?;
        Ok(statement.query_row([self.machine.boot_id()], |row| row.get::<_, i64>(0))? > 0)
    }

    /// The machine goes down with everything on it. The store forces what it says to disk, the runner's journal does not.
    fn restart(&mut self, off_ms: i64, journal_loses: usize) {
        self.end_runner();
        self.end_coordinator(false);
        self.remains.processes.clear();
        let kept = self.remains.journal.len().saturating_sub(journal_loses);
        for line in self.remains.journal.drain(kept..) {
            if let Line::Ended(ended) = line {
                self.judge.lost_from_journal(ended.key);
            }
        }
        let before = self.machine.boot_ms();
        self.machine.restart(off_ms);
        self.judge.machine_restarted(before, off_ms, self.machine.boot_ms());
        self.judge.time_passed(self.machine.boot_ms());
    }

    /// From now on nothing goes wrong. Everything has its turn in every round until nothing is left to do.
    fn come_to_an_end(&mut self) -> anyhow::Result<()> {
        self.trace.tell("all is calm".to_owned());
        self.calm = true;
        self.machine.settle_down();
        let (mut quiet, mut calm_for) = (0, 0);
        for round in 0..ROUNDS_MAX {
            if !self.judge.wrong.is_empty() {
                return Ok(());
            }
            let told = self.trace.len();
            self.everybody()?;
            quiet = if self.trace.len() > told { 0 } else { quiet + 1 };
            if quiet > 2 && self.is_over()? {
                return Ok(());
            }
            let ms = (50 << (quiet / 8).min(12)).min(ROUND_MS_MAX);
            self.pass(ms);
            calm_for += ms;
            if round % 32 == 31 && calm_for > 300_000 {
                let now = self.moment();
                self.judge.look_for_frozen(&self.rows, now)?;
            }
        }
        Ok(())
    }

    fn everybody(&mut self) -> anyhow::Result<()> {
        self.coordinate()?;
        self.haunt();
        self.hear_coordinator();
        self.look_after_processes();
        self.end_turn(Until::End);
        self.deliver();
        while !self.mail.is_empty() && self.handle().is_some() {
            self.bring_news();
        }
        self.work();
        self.ask()?;
        self.coordinate()
    }

    fn is_over(&self) -> anyhow::Result<bool> {
        let busy = self.workers.iter().any(Worker::is_busy) || !self.clients.iter().all(Client::is_content);
        let runner_busy =
            self.runner.as_ref().is_some_and(|r| !r.is_idle() || r.has_news() || r.has_flying());
        let asked = self.handing_over.is_some();
        if busy || runner_busy || asked || self.handle().is_none() {
            return Ok(false);
        }
        let left = "SELECT count(*) FROM dag_runs WHERE completed_at IS NULL";
        Ok(self.rows.prepare_cached(left)?.query_row([], |row| row.get::<_, i64>(0))? == 0)
    }

    fn judged(mut self) -> anyhow::Result<Verdict> {
        self.end_runner();
        self.end_coordinator(false);
        let file = self.options.data_dir.database();
        let conn = Connection::open(&file)?;
        if self.judge.wrong.is_empty() {
            self.judge.judge(&conn)?;
        }
        let found = check::violations(&Reader::open(&file)?).context("the store cannot be checked")?;
        found.into_iter().for_each(|wrong| self.judge.finds(wrong));
        for line in story(&conn)? {
            self.trace.count(&line);
            self.tally.events += 1;
        }
        let runs: i64 = conn.query_row("SELECT count(*) FROM dag_runs", [], |row| row.get(0))?;
        self.tally.runs = runs.cast_unsigned();
        let (hash, tally, wrong) = (self.trace.hash(), self.tally, self.judge.wrong);
        Ok(Verdict { hash, tally, wrong, last_steps: self.trace.last_steps() })
    }
}

/// Whoever asks writes: another thread would have a say in what happens when.
fn open(data_dir: &DataDir, machine: &MadeUp) -> anyhow::Result<SqliteStore> {
    let store = SqliteStore::open(&data_dir.database(), Durability::Process)?;
    Ok(store.here().by_clock(Arc::new(machine.clone())))
}
