//! Making room without being asked: a node that was told how long runs are kept, or how much room they may take, looks
//! now and then whether something may go, and prunes it in chunks. Others come in between, so nobody waits for it.

use std::sync::Arc;
use std::time::Duration;

use cis_api::run::PruneBody;
use cis_core::error::Refusal;
use cis_core::source::{Millis, Timestamp};
use cis_store::TextSearch;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::app::App;
use crate::prune::{Pruning, everything_before, files_size};

/// Between two looks.
const EVERY: Duration = Duration::from_secs(10 * 60);

/// Between two chunks: most of the time belongs to others.
const PAUSE: Duration = Duration::from_millis(5);

/// Runs that go at once where only room counts: not many more than have to.
const FEW: u32 = 10;

/// How much is kept. Nothing said means everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Runs that ended longer ago than this go.
    pub max_age: Option<Millis>,
    /// Above this many bytes of database and files, the oldest runs go.
    pub max_size: Option<u64>,
    /// But never the latest so many of each DAG.
    pub keep: u32,
    /// Definitions of revisions that were rejected or expired longer ago than this go, whatever else is kept.
    pub rejected_max_age: Millis,
}

/// Keeps to it until `leaving` becomes true. What a prune that was killed left is finished first, whatever is kept.
pub async fn retain(app: App, retention: Retention, mut leaving: watch::Receiver<bool>) {
    let keeping = async {
        if let Err(refusal) = keep_public_texts(&app).await {
            tracing::warn!("public texts of definitions are not kept: {refusal}");
        }
        loop {
            if let Err(refusal) = look(&app, retention).await {
                tracing::warn!("cannot make room: {refusal}");
            }
            tokio::time::sleep(EVERY).await;
        }
    };
    tokio::select! {
        () = keeping => {}
        _ = leaving.wait_for(|leaving| *leaving) => {}
    }
}

async fn look(app: &App, retention: Retention) -> Result<(), Refusal> {
    let now = app.now();
    let mut left = Pruning::new(PruneBody { limit: 0, ..everything_before(now, 0) });
    work_off(app, &mut left).await?;
    remove_definitions(app, now.before(retention.rejected_max_age)).await?;
    if let Some(age) = retention.max_age {
        let mut old = Pruning::new(everything_before(now.before(age), retention.keep));
        work_off(app, &mut old).await?;
        tell(&old, "too old");
    }
    if let Some(size) = retention.max_size {
        shrink(app, size, retention.keep).await?;
    }
    if retention.max_age.is_some() || retention.max_size.is_some() {
        let skills = in_thread(app, move |app| {
            left.clear_skills(&app.options().data_dir)?;
            Ok(left)
        });
        tell(&skills.await?, "not needed");
    }
    Ok(())
}

/// Removes what revisions held that were turned down before `before`, a chunk at a time.
async fn remove_definitions(app: &App, before: Timestamp) -> Result<(), Refusal> {
    let mut removed = 0;
    loop {
        match app.remove_definitions(before).await? {
            0 => break,
            chunk => removed += chunk,
        }
        tokio::time::sleep(PAUSE).await;
    }
    if removed > 0 {
        tracing::info!(definitions = removed, why = "rejected or expired", "removed definitions");
    }
    Ok(())
}

/// Keeps the public texts of large definitions that an earlier version published, or that a kill prevented: one at a time.
async fn keep_public_texts(app: &App) -> Result<(), Refusal> {
    let mut after = Some(0);
    while let Some(from) = after {
        let found = in_thread(app, move |app| {
            let reader = app.reader()?;
            let TextSearch { found, after } = reader.next_without_public_text(from)?;
            // What was removed meanwhile needs none.
            let found = found.and_then(|(key, hash)| Some((key, hash, reader.definition(key).ok()?)));
            Ok((found, after))
        });
        let (found, next) = found.await?;
        after = next;
        if let Some((key, hash, dag)) = found {
            app.keep_public_text(key, hash, Arc::new(dag)).await?;
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// Prunes the oldest runs until no more than `size` bytes are in use.
async fn shrink(app: &App, size: u64, keep: u32) -> Result<(), Refusal> {
    let now = app.now();
    let mut pruning = Pruning::new(everything_before(now, keep));
    let files = in_thread(app, |app| Ok(files_size(&app.options().data_dir))).await?;
    loop {
        let database = in_thread(app, |app| Ok(app.reader()?.room()?.0)).await?;
        if database + files.saturating_sub(pruning.bytes) <= size {
            break;
        }
        let before = pruning.runs.len();
        pruning.limit(FEW);
        while pruning.runs.len() == before {
            if !(chunk(app, &mut pruning).await?) {
                tracing::warn!("runs that are over are gone, and there is still more than `max_size`");
                return Ok(());
            }
        }
        pruning.limit(0);
        work_off(app, &mut pruning).await?;
    }
    tell(&pruning, "no room");
    Ok(())
}

fn tell(pruning: &Pruning, why: &str) {
    if !pruning.runs.is_empty() {
        tracing::info!(runs = pruning.runs.len(), file_bytes = pruning.bytes, why, "pruned");
    }
    if pruning.skills > 0 {
        tracing::info!(skills = pruning.skills, file_bytes = pruning.bytes, why, "removed kept skills");
    }
    for why in pruning.stuck.values() {
        tracing::warn!("files of a pruned run cannot be removed: {why}");
    }
    for why in &pruning.skills_stuck {
        tracing::warn!("a kept skill cannot be removed: {why}");
    }
}

async fn work_off(app: &App, pruning: &mut Pruning) -> Result<(), Refusal> {
    while chunk(app, pruning).await? {
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// One chunk, and the files of what it leaves; false when there is nothing more to do.
async fn chunk(app: &App, pruning: &mut Pruning) -> Result<bool, Refusal> {
    let pruned = app.prune(pruning.request()).await?;
    if pruned.bare.is_empty() {
        return Ok(pruning.take(&app.options().data_dir, pruned));
    }
    let mut taking = std::mem::replace(pruning, Pruning::new(pruning.request()));
    let (taken, more) = in_thread(app, move |app| {
        let more = taking.take(&app.options().data_dir, pruned);
        Ok((taking, more))
    })
    .await?;
    *pruning = taken;
    Ok(more)
}

/// Where waiting for the disk keeps nobody else waiting.
async fn in_thread<T: Send + 'static>(
    app: &App,
    look: impl FnOnce(&App) -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let app = app.clone();
    spawn_blocking(move || look(&app)).await.map_err(|_| crate::app::broke_off("making room"))?
}
