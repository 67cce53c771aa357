//! What a coordinator says to runners of this version and of the first one, and how it leaves them.

use cis_runner::directory::Directory;
use cis_runner::frame::{self, Decoder};
use cis_runner::protocol::{
    Ended, FromRunner, HAND_OVER_KEEP_MS, Known, KnownState, LogSummary, OLDEST, Outcome, PROTOCOL, Start,
    ToRunner,
};
use cis_store::SqliteStore;
use cis_store::port::StartRun;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::handle::News;
use super::tests::{Forgetful, coordinator_on, request};
use super::*;
use crate::runner_link::{Peer, RunnerAddress};

/// A runner that speaks this protocol.
fn speaking(protocol: u32) -> Forgetful {
    knowing(protocol, Vec::new(), None)
}

/// A runner that has attempts already, and says which directory it serves.
fn knowing(protocol: u32, attempts: Vec<Known>, directory: Option<Directory>) -> Forgetful {
    let boot_id = "one".to_owned();
    Forgetful::greeting(FromRunner::Welcome {
        protocol,
        oldest: OLDEST,
        boot_id,
        pid: 4711,
        attempts,
        directory,
    })
}

/// The runner's end of a connection.
struct RunnerEnd {
    stream: DuplexStream,
    decoder: Decoder,
}

impl RunnerEnd {
    async fn hear(&mut self) -> ToRunner {
        let mut buffer = [0; 4096];
        loop {
            if let Some(message) = self.decoder.pull().unwrap() {
                return message;
            }
            let n = self.stream.read(&mut buffer).await.unwrap();
            assert!(n > 0, "the coordinator is gone");
            self.decoder.push(&buffer[..n]);
        }
    }

    /// The next attempt to start.
    async fn start(&mut self) -> Start {
        loop {
            if let ToRunner::Start(start) = self.hear().await {
                return *start;
            }
        }
    }

    /// What the coordinator says about handing over, and nothing else before it.
    async fn keep_ms(&mut self) -> u64 {
        match self.hear().await {
            ToRunner::HandOver { keep_ms } => keep_ms,
            other => panic!("unexpected {other:?}"),
        }
    }

    async fn say(&mut self, message: &FromRunner) {
        self.stream.write_all(&frame::encode(message).unwrap()).await.unwrap();
    }

    async fn end(&mut self, key: AttemptKey) {
        let (outcome, log) = (Outcome::Exited { code: 0 }, LogSummary::default());
        let ended = Ended { key, outcome, started_ms: 1, ended_ms: 2, log, outputs: None };
        self.say(&FromRunner::Ended(Box::new(ended))).await;
    }
}

/// A coordinator whose process owns a run, and what its runner is told first.
struct Owned {
    coordinator: Coordinator<SqliteStore, Forgetful>,
    handle: Handle,
    runner: RunnerEnd,
    start: Start,
}

impl Owned {
    async fn new(store: &SqliteStore, root: &Path, machine: Forgetful, dag: &str, max: Option<u32>) -> Self {
        let (mut coordinator, handle) = coordinator_on(store, root, machine).await;
        let request = request(store, dag).await;
        let request = StartRun { attached: true, at_node: false, max_parallel: max, ..request };
        let context = Some(Context::of_node(&[], &[], Vec::new()));
        let expected = Expected { owner: Some(SELF), is_owner_gone: false, context };
        let noted = oneshot::channel().0;
        coordinator.handle(Ask::Expect { run: request.run_id, expected, noted }).await.unwrap();
        let started = Some(store.start_run(request).await.unwrap().answer.unwrap());
        coordinator.handle(Ask::Wrote(News { started, ready: true, ..News::default() })).await.unwrap();
        coordinator.settle().await.unwrap();
        let stream = coordinator.machine.runner.lock().unwrap().pop().unwrap();
        let mut runner = RunnerEnd { stream, decoder: Decoder::new() };
        let start = runner.start().await;
        Self { coordinator, handle, runner, start }
    }
}

fn store_in(dir: &tempfile::TempDir) -> SqliteStore {
    SqliteStore::open(&dir.path().join("dag.db"), Durability::Process).unwrap()
}

const PLAIN: &str = "dag_id = 'd'\ntasks = [{ id = 't', command = 'true' }]";

#[tokio::test(flavor = "current_thread")]
async fn coordinator_that_hands_over_leaves_when_the_runner_is_ready() {
    let dir = tempfile::tempdir().unwrap();
    let owned = Owned::new(&store_in(&dir), dir.path(), speaking(PROTOCOL), PLAIN, None).await;
    let Owned { coordinator, handle, mut runner, start } = owned;
    assert!(start.tied);
    let runner = async {
        assert_eq!(runner.keep_ms().await, HAND_OVER_KEEP_MS);
        // Whatever is told before is not recorded any more: the next coordinator hears it again.
        runner.say(&FromRunner::Started { key: start.key, pid: 7, at_ms: 3 }).await;
        runner.say(&FromRunner::HandOverReady).await;
        let mut rest = Vec::new();
        runner.stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"", "and then it is gone");
    };
    let (ended, left, ()) = tokio::join!(coordinator.run(), handle.hand_over(), runner);
    assert_eq!(left.unwrap(), 1, "its run goes on");
    ended.unwrap();
    assert!(handle.hand_over().await.unwrap_err().is_leaving(), "it has left");
}

#[tokio::test(flavor = "current_thread")]
async fn runner_of_the_first_protocol_is_not_asked_to_keep_attempts() {
    let dir = tempfile::tempdir().unwrap();
    let owned = Owned::new(&store_in(&dir), dir.path(), speaking(1), PLAIN, None).await;
    let Owned { coordinator, handle, mut runner, start } = owned;
    assert_eq!(coordinator.link.as_ref().map(|link| link.peer), Some(Peer { pid: 4711, protocol: 1 }));
    let caller = async {
        let refusal = handle.hand_over().await.unwrap_err();
        assert_eq!(refusal.code, ErrorCode::Unavailable);
        for part in ["process 4711", "`d#1`"] {
            assert!(refusal.message.contains(part), "{refusal}");
        }
        assert_eq!(refusal.details["runs"], serde_json::json!(["d#1"]));
        assert!(handle.describe().await.is_ok(), "it is still there");
        // When the attempt is over, nothing is in the way.
        runner.end(start.key).await;
        assert!(matches!(runner.hear().await, ToRunner::Ack { .. }), "HandOver was not said");
        assert_eq!(handle.hand_over().await.unwrap(), 0);
    };
    let (ended, ()) = tokio::join!(coordinator.run(), caller);
    ended.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn attempts_that_an_older_runner_had_before_keep_no_coordinator_from_leaving() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(&dir);
    let Owned { coordinator, start, .. } =
        Owned::new(&store, dir.path(), speaking(PROTOCOL), PLAIN, None).await;
    let run = RunKey(start.context);
    drop(coordinator);
    let known = Known { key: start.key, state: KnownState::Running, remnant: false };
    let (mut next, handle) = coordinator_on(&store, dir.path(), knowing(1, vec![known], None)).await;
    assert_eq!(next.flying.len(), 1);
    // Its process has become the coordinator, and owns the run again.
    next.handle(Ask::Attach { run, owner: SELF, noted: oneshot::channel().0 }).await.unwrap();
    let (ended, left) = tokio::join!(next.run(), handle.hand_over());
    assert_eq!(left.unwrap(), 1);
    ended.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn hand_over_that_a_silent_runner_does_not_answer_is_refused_and_withdrawn() {
    let dir = tempfile::tempdir().unwrap();
    let owned = Owned::new(&store_in(&dir), dir.path(), speaking(PROTOCOL), PLAIN, None).await;
    let Owned { coordinator, handle, mut runner, start } = owned;
    *coordinator.machine.skips.lock().unwrap() = Some(PATIENCE);
    let caller = async {
        let refusal = handle.hand_over().await.unwrap_err();
        assert!(refusal.message.contains("does not answer"), "{refusal}");
        assert_eq!(runner.keep_ms().await, HAND_OVER_KEEP_MS);
        assert_eq!(runner.keep_ms().await, 0);
        runner.say(&FromRunner::HandOverReady).await;
        runner.end(start.key).await;
        assert!(matches!(runner.hear().await, ToRunner::Ack { .. }), "the loop goes on");
        handle.hand_over().await.unwrap();
    };
    let (ended, ()) = tokio::join!(coordinator.run(), caller);
    ended.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn run_with_a_limit_has_a_lane_unless_the_runner_knows_none() {
    let lane_of = async |protocol, dag: &str, max_parallel| {
        let dir = tempfile::tempdir().unwrap();
        let owned = Owned::new(&store_in(&dir), dir.path(), speaking(protocol), dag, max_parallel).await;
        owned.start.lane.map(|lane| (lane.id == owned.start.context, lane.max))
    };
    let limited = &format!("max_parallel = 3\n{PLAIN}");
    assert_eq!(lane_of(PROTOCOL, PLAIN, None).await, None);
    assert_eq!(lane_of(PROTOCOL, limited, None).await, Some((true, 3)));
    assert_eq!(lane_of(PROTOCOL, limited, Some(5)).await, Some((true, 5)), "what its caller says goes first");
    assert_eq!(lane_of(PROTOCOL, PLAIN, Some(2)).await, Some((true, 2)));
    assert_eq!(lane_of(1, limited, Some(5)).await, None);
}

#[tokio::test(flavor = "current_thread")]
async fn runner_of_another_directory_is_told_with_both_directories_and_a_way_out() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (at_ours, at_theirs) = [&ours, &theirs].map(|dir| Directory::at(dir.path()).unwrap()).into();
    let address =
        RunnerAddress { data_dir: ours.path().to_owned(), exe: "/nowhere".into(), epoch: Epoch(1), slots: 1 };
    let refused = FromRunner::WrongDirectory { pid: 4711, directory: Directory::clone(&at_theirs) };
    for machine in [Forgetful::greeting(refused), knowing(PROTOCOL, Vec::new(), Some(at_theirs))] {
        let refusal = RunnerLink::connect(&machine, &address).await.unwrap_err();
        let told = format!("{refusal} {:?}", refusal.hint);
        for part in
            ["process 4711", ours.path().to_str().unwrap(), theirs.path().to_str().unwrap(), "runner.sock"]
        {
            assert!(told.contains(part), "{told}");
        }
    }
    let link =
        RunnerLink::connect(&knowing(PROTOCOL + 1, Vec::new(), Some(at_ours)), &address).await.unwrap();
    assert_eq!(link.peer, Peer { pid: 4711, protocol: PROTOCOL }, "no more than both understand");
}

/// A run that its process owns as `owner`, told to the loop in the order that a caller's steps would be.
async fn expect_and_start(
    coordinator: &mut Coordinator<SqliteStore, Forgetful>,
    store: &SqliteStore,
    owner: Owner,
) -> RunKey {
    let request = StartRun { attached: true, at_node: false, ..request(store, PLAIN).await };
    let context = Some(Context::of_node(&[], &[], Vec::new()));
    let expected = Expected { owner: Some(owner), is_owner_gone: false, context };
    let noted = oneshot::channel().0;
    coordinator.handle(Ask::Expect { run: request.run_id, expected, noted }).await.unwrap();
    let run = store.start_run(request).await.unwrap().answer.unwrap();
    let news = News { started: Some(run.clone()), ready: true, ..News::default() };
    coordinator.handle(Ask::Wrote(news)).await.unwrap();
    run.key
}

#[tokio::test(flavor = "current_thread")]
async fn run_whose_owner_was_gone_before_it_was_expected_is_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(&dir);
    let (mut coordinator, _handle) = coordinator_on(&store, dir.path(), speaking(PROTOCOL)).await;
    // The first look at the clocks puts everything off that is due by them.
    coordinator.settle().await.unwrap();
    coordinator.handle(Ask::Gone(Owner(7))).await.unwrap();
    let run = expect_and_start(&mut coordinator, &store, Owner(7)).await;
    coordinator.settle().await.unwrap();
    let reader = cis_store::Reader::open(&dir.path().join("dag.db")).unwrap();
    let stopped = reader.run(run).unwrap().unwrap();
    assert_eq!(stopped.stop_reason, Some(StopReason::OwnerGone), "{stopped:?}");
}

#[tokio::test(flavor = "current_thread")]
async fn orphan_is_stopped_only_when_its_owner_is_not_alive() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(&dir);
    let (mut coordinator, _handle) = coordinator_on(&store, dir.path(), speaking(PROTOCOL)).await;
    let run = expect_and_start(&mut coordinator, &store, Owner(7)).await;
    let data_dir = coordinator.options.data_dir.clone();
    let owned = Context::of_caller(dir.path().to_owned(), Vec::new());
    owned.save(&data_dir.context(run.0), Durability::Process).unwrap();
    coordinator.orphans = vec![run];
    coordinator.end_orphans().await.unwrap();
    let reader = cis_store::Reader::open(&dir.path().join("dag.db")).unwrap();
    assert_eq!(reader.run(run).unwrap().unwrap().stop_reason, None, "this process lives");
    assert!(coordinator.orphans_due.is_some(), "and is looked for again");
    Context { owner: None, ..owned }.save(&data_dir.context(run.0), Durability::Process).unwrap();
    coordinator.end_orphans().await.unwrap();
    assert_eq!(reader.run(run).unwrap().unwrap().stop_reason, Some(StopReason::OwnerGone));
}
