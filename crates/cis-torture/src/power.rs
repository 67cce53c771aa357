//! Power loss. A store lives at `durability = "power"` on a [`Disk`] that remembers; then it is as if the power had failed
//! at chosen moments of that life, many times over:
//!
//! ```text
//!   writes, syncs, acknowledgements ─ ─ ─ ─ cut ─ ─ ─ ─►
//!                                            │
//!      what was synced ── is there           └─► an image ─► opened, recovered, checked
//!      what was not ───── each sector there, lost or garbage, by chance
//! ```
//!
//! Since each sector has a fate of its own, writes are dropped, torn, and overtaken by later ones. The control is the same
//! life on a disk that only says it has synced: it must lose something, or the images show nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use cis_core::id::Epoch;
use cis_core::source::{BootTime, Timestamp};
use cis_store::port::{Boot, CoordinatorStore as _};
use cis_store::{Durability, Reader, SqliteStore, check};
use rusqlite::Connection;

use crate::chance::Chance;
use crate::clock::Stopwatch;
use crate::disk::{Disk, Event, Fault};
use crate::life::{Life, Promise, story};
use crate::{Dose, Finding, place};

/// What a disk writes whole or not at all.
const SECTOR_BYTES: u64 = 512;

/// The store's file.
const DATABASE: &str = "dag.db";

/// Things done in one life: enough for the log to be folded back several times.
const ACTS: u32 = 400;

/// Images made of one life.
const IMAGES_PER_LIFE: u64 = 25;

/// Loses power, once per round: nothing that was acknowledged may be lost.
pub fn run(dose: &Dose) -> anyhow::Result<Finding> {
    lose_power(dose, Fault::None)
}

/// The same where syncs are not done: what is told as a violation here is what the images are able to show.
pub fn control(dose: &Dose) -> anyhow::Result<Finding> {
    lose_power(dose, Fault::NoSync)
}

fn lose_power(dose: &Dose, fault: Fault) -> anyhow::Result<Finding> {
    let watch = Stopwatch::start();
    let (mut tally, mut violations) = (Tally::default(), Vec::new());
    let mut lives = 0;
    while watch.lets(tally.images, dose) {
        let mut chance = Chance::new(dose.seed).fork(lives);
        let life = Recording::make(chance.fork(1), fault)?;
        let images = IMAGES_PER_LIFE.min(dose.rounds - tally.images);
        let mut cuts: Vec<usize> =
            (0..images).map(|_| chance.below(life.events.len() as u64) as usize).collect();
        cuts.sort_unstable();
        let (mut files, mut done) = (Files::default(), 0);
        for cut in cuts {
            life.events[done..cut].iter().for_each(|event| files.take(event));
            done = cut;
            let dir = place()?;
            files.image(dir.path(), &mut chance)?;
            tally.count(&files);
            let wrong = life.missing(dir.path(), files.acknowledged);
            let wrong = wrong.unwrap_or_else(|e| vec![format!("cannot be opened: {e:#}")]);
            violations.extend(
                wrong.iter().map(|wrong| format!("seed {}, life {lives}, cut {cut}: {wrong}", dose.seed)),
            );
            tally.hurt += u64::from(!wrong.is_empty());
        }
        lives += 1;
    }
    let counts = vec![
        ("power losses", tally.images),
        ("lives they happened to", lives),
        ("writes not synced when they happened", tally.unsynced),
        ("acknowledged writes asked for", tally.asked),
        ("images with something wrong", tally.hurt),
    ];
    Ok(Finding { counts, violations, ..Finding::default() })
}

#[derive(Default)]
struct Tally {
    images: u64,
    unsynced: u64,
    asked: u64,
    hurt: u64,
}

impl Tally {
    fn count(&mut self, files: &Files) {
        self.images += 1;
        self.unsynced += files.all.values().map(|file| file.unsynced.len() as u64).sum::<u64>();
        self.asked += files.acknowledged as u64;
    }
}

/// A life, and what the disk saw of it.
struct Recording {
    events: Vec<Event>,
    promises: Vec<Promise>,
    story: Vec<String>,
    epoch: Epoch,
}

impl Recording {
    fn make(chance: Chance, fault: Fault) -> anyhow::Result<Self> {
        let dir = place()?;
        let disk = Disk::watch(dir.path(), true)?;
        disk.fail(fault);
        let file = dir.path().join(DATABASE);
        let store = SqliteStore::open(&file, Durability::Power)?;
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let life = runtime.block_on(async {
            let mut life = Life::begin(store.clone(), chance).await?;
            for _ in 0..ACTS {
                life.act().await?;
                disk.acknowledged(life.promises().len());
            }
            anyhow::Ok(life)
        })?;
        let (promises, epoch) = (life.promises().to_vec(), life.epoch());
        drop(life);
        store.close();
        let story = story(&Connection::open(&file)?)?;
        Ok(Self { events: disk.events(), promises, story, epoch })
    }

    /// What an image lacks of what was acknowledged before the cut, and what else is wrong with it.
    fn missing(&self, dir: &Path, acknowledged: usize) -> anyhow::Result<Vec<String>> {
        let file = dir.join(DATABASE);
        let store = SqliteStore::open(&file, Durability::Power)?;
        let mut wrong = check::violations(&Reader::open(&file)?)?;
        let conn = Connection::open(&file)?;
        for promise in &self.promises[..acknowledged] {
            if !promise.is_kept(&conn)? {
                wrong.push(format!("lost: {promise:?}"));
            }
        }
        if !self.story.starts_with(&story(&conn)?) {
            wrong.push("tells of what never happened".to_owned());
        }
        // It goes on from there, and no fence comes twice.
        let boot = Boot { id: "the next boot".into(), now: BootTime(0) };
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let opening = runtime.block_on(store.open_epoch(Timestamp(2_000_000), boot))?;
        if acknowledged > 0 && opening.epoch <= self.epoch {
            wrong.push(format!("epoch {} begins again", opening.epoch));
        }
        store.close();
        Ok(wrong)
    }
}

/// What the disk holds at some moment.
#[derive(Default)]
struct Files {
    all: BTreeMap<Arc<str>, Content>,
    acknowledged: usize,
}

#[derive(Default)]
struct Content {
    /// What is there whatever happens; nothing, if the file may not be.
    durable: Option<Vec<u8>>,
    unsynced: Vec<Change>,
}

enum Change {
    Write { at: u64, bytes: Arc<[u8]> },
    Truncate { length: u64 },
    Delete,
}

impl Files {
    fn take(&mut self, event: &Event) {
        let mut of =
            |file: &Arc<str>, change| self.all.entry(file.clone()).or_default().unsynced.push(change);
        match event {
            Event::Write { file, at, bytes } => of(file, Change::Write { at: *at, bytes: bytes.clone() }),
            Event::Truncate { file, length } => of(file, Change::Truncate { length: *length }),
            Event::Delete { file, durable: false } => of(file, Change::Delete),
            Event::Delete { file, durable: true } => {
                self.all.remove(file);
            }
            Event::Sync { file } => {
                let content = self.all.entry(file.clone()).or_default();
                let is_new = content.durable.is_none();
                content.sync();
                // With a log or a journal that is new, SQLite syncs the directory as well.
                if is_new && &**file != DATABASE {
                    self.all.values_mut().for_each(Content::forget_deleted);
                }
            }
            Event::Acknowledged(count) => self.acknowledged = *count,
        }
    }

    /// Writes down what a power loss at this moment may leave.
    fn image(&self, dir: &Path, chance: &mut Chance) -> anyhow::Result<()> {
        // Of 16 unsynced sectors, how many made it: from none to all.
        let made_it = chance.pick(&[0, 2, 8, 14, 16]).copied().unwrap_or_default();
        for (name, content) in &self.all {
            let mut left = content.durable.clone();
            for change in &content.unsynced {
                change.land(
                    &mut left,
                    |chance| match chance.below(16) {
                        roll if roll < made_it => Fate::There,
                        _ if chance.one_in(8) => Fate::Garbage(chance.bits() as u8),
                        _ => Fate::Lost,
                    },
                    chance,
                );
            }
            if let Some(left) = left {
                fs::write(dir.join(&**name), left).context("an image")?;
            }
        }
        Ok(())
    }
}

/// What becomes of a sector.
enum Fate {
    There,
    Lost,
    Garbage(u8),
}

impl Content {
    fn sync(&mut self) {
        let mut synced = Some(self.durable.take().unwrap_or_default());
        for change in self.unsynced.drain(..) {
            change.land(&mut synced, |_| Fate::There, &mut Chance::new(0));
        }
        self.durable = synced;
    }

    /// What was deleted stays so.
    fn forget_deleted(&mut self) {
        if let Some(last) = self.unsynced.iter().rposition(|change| matches!(change, Change::Delete)) {
            self.unsynced.drain(..=last);
            self.durable = None;
        }
    }
}

impl Change {
    /// Changes `file` as far as `fate` lets it.
    fn land(&self, file: &mut Option<Vec<u8>>, fate: impl Fn(&mut Chance) -> Fate, chance: &mut Chance) {
        match self {
            Self::Write { at, bytes } => {
                let mut from = *at;
                let end = at + bytes.len() as u64;
                while from < end {
                    let to = end.min((from / SECTOR_BYTES + 1) * SECTOR_BYTES);
                    let part = &bytes[(from - at) as usize..(to - at) as usize];
                    match fate(chance) {
                        Fate::There => put(file, from, part),
                        Fate::Garbage(byte) => put(file, from, &vec![byte; part.len()]),
                        Fate::Lost => {}
                    }
                    from = to;
                }
            }
            Self::Truncate { length } => {
                if let (Some(file), Fate::There) = (file, fate(chance)) {
                    file.resize(*length as usize, 0);
                }
            }
            Self::Delete => {
                if matches!(fate(chance), Fate::There) {
                    *file = None;
                }
            }
        }
    }
}

fn put(file: &mut Option<Vec<u8>>, at: u64, bytes: &[u8]) {
    let file = file.get_or_insert_default();
    let (at, end) = (at as usize, at as usize + bytes.len());
    if file.len() < end {
        file.resize(end, 0);
    }
    file[at..end].copy_from_slice(bytes);
}
