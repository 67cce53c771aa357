//! The table of calls: method, path, who may call, the parts of the request, the response. Routes, the typed client and the
//! functions that answer derive from it. A call that is not here is not served.
//!
//! A row reads: documentation, `Name: method "path", who may call, tag, (path, query, body) -> response, status "meaning"`, and
//! where it applies `status (which of them)`, `keyed` (takes an `Idempotency-Key`), `refuses […]` (statuses of refusals that do not follow from what it
//! takes) and `stream "content type"`.

use cis_core::access::Role;

use crate::call::{Access, Call, CallInfo, Method, Nothing, Tag};
use crate::dag::{
    DagDecided, DagDecision, DagPath, DagQuery, DagRevision, DagStanding, Dags, InScope, Novelty, Published,
    RevisionQuery, StatusQuery, Versioned,
};
use crate::definition::{DefinitionBody, SubmissionBody};
use crate::event::{Change, Event, EventQuery};
use crate::log::{LogLine, LogQuery};
use crate::node::{
    CoordinatorInfo, Drained, HandOverBody, HandingOver, NodeProof, Nodes, PausedScope, ProofQuery, Ready,
    ScopePath,
};
use crate::review::{Pending, Review, ReviewDecided, ReviewDecision, ReviewPath};
use crate::run::{
    CancelBody, PageQuery, PausedRun, PruneBody, PrunedChunk, ResumeBody, RetryBody, Run, RunDefinitionBody,
    RunPath, RunQuery, RunStarted, RunStopping, Runs, StartBody,
};
use crate::task::{TaskDecided, TaskDecision, TaskPath, TaskQuery, Tasks};
use crate::token::{CreateTokenBody, NewToken, TokenPath, TokenRevoked, Tokens, Whoami};
use crate::why::{Explained, WhyQuery};
use crate::work::{
    AttemptEnded, ClaimBody, ClaimedTasks, CompleteBody, ExecutionPath, FailBody, HeartbeatBody,
    LeaseRenewed, LogBody, LogWritten, Noted, ProgressBody, ReleaseBody,
};

const READ: Access = Access::With(Role::Read);
const PUBLISH: Access = Access::With(Role::Publish);
const CONFIRM: Access = Access::With(Role::Confirm);
const WORK: Access = Access::With(Role::Work);
const ADMIN: Access = Access::With(Role::Admin);

/// Content that was there before is not created.
fn published_status(published: &Published) -> u16 {
    match published.status {
        Novelty::Created => 201,
        Novelty::AlreadyExists => 200,
    }
}

macro_rules! calls {
    (($d:tt) $(
        $(#[doc = $doc:literal])+
        $name:ident: $method:ident $path:literal, $access:expr, $tag:ident,
        ($of:ty, $query:ty, $body:ty) -> $response:ty,
        $($status:literal $meaning:literal),+
        $(; $($more:ident $value:tt),+)?;
    )*) => {
        $(
            $(#[doc = $doc])+
            #[derive(Debug, Clone, Copy)]
            pub enum $name {}

            impl Call for $name {
                const NAME: &'static str = stringify!($name);
                const METHOD: Method = Method::$method;
                const PATH: &'static str = $path;
                const ACCESS: Access = $access;
                const TAG: Tag = Tag::$tag;
                const DOC: &'static [&'static str] = &[$($doc),+];
                const SUCCESS: &'static [(u16, &'static str)] = &[$(($status, $meaning)),+];
                const STATUS: fn(&$response) -> u16 = calls!(@status $($($more $value),+)?);
                const REFUSALS: &'static [u16] = calls!(@refuses $($($more $value),+)?);
                const IS_KEYED: bool = calls!(@keyed $($($more $value),+)?);
                const STREAM: Option<&'static str> = calls!(@stream $($($more $value),+)?);
                type Path = $of;
                type Query = $query;
                type Body = $body;
                type Response = $response;
            }
        )*

        /// Every call.
        pub const CALLS: &[CallInfo] = &[$(CallInfo::of::<$name>()),*];

        /// Hands the names of all calls to another macro.
        #[macro_export]
        macro_rules! each_call {
            ($d go:ident) => { $d go! { $($name)* } };
        }
    };
    (@refuses refuses $statuses:tt $(, $($rest:tt)*)?) => { &$statuses };
    (@refuses $more:ident $value:tt $(, $($rest:tt)*)?) => { calls!(@refuses $($($rest)*)?) };
    (@refuses) => { &[] };
    (@status status $of:tt $(, $($rest:tt)*)?) => { $of };
    (@status $more:ident $value:tt $(, $($rest:tt)*)?) => { calls!(@status $($($rest)*)?) };
    (@status) => { |_| Self::SUCCESS[0].0 };
    (@keyed keyed () $(, $($rest:tt)*)?) => { true };
    (@keyed $more:ident $value:tt $(, $($rest:tt)*)?) => { calls!(@keyed $($($rest)*)?) };
    (@keyed) => { false };
    (@stream stream $type:tt $(, $($rest:tt)*)?) => { Some($type) };
    (@stream $more:ident $value:tt $(, $($rest:tt)*)?) => { calls!(@stream $($($rest)*)?) };
    (@stream) => { None };
}

calls! { ($)
    /// Publish a DAG.
    ///
    /// It waits until an approver confirms it. The same content again is `already_exists`; other content under a name that
    /// is taken is refused, unless `revision` asks for a new revision.
    PublishDag: Post "/api/v1/dag/publish", PUBLISH, Dags, (Nothing, Nothing, DefinitionBody) -> Published,
        201 "created", 200 "it was there already"; keyed (), refuses [409], status (published_status);

    /// What would be confirmed, or was, of a DAG named `publish`.
    ///
    /// Its path is also that of the call that publishes.
    ShowDagPublish: Get "/api/v1/dag/publish", READ, Dags, (Nothing, RevisionQuery, Nothing) -> DagRevision,
        200 "a revision in full, and a list of all"; refuses [404, 409];

    /// Confirm a DAG and start it.
    ///
    /// Again, it answers the same run. The publisher does not confirm it, owners excepted.
    ConfirmDag: Post "/api/v1/dag/{id}/confirm", CONFIRM, Dags, (DagPath, InScope, DagDecision) -> DagDecided,
        200 "confirmed, and started"; keyed (), refuses [409];

    /// Refuse a DAG.
    RejectDag: Post "/api/v1/dag/{id}/reject", CONFIRM, Dags, (DagPath, InScope, DagDecision) -> DagDecided,
        200 "refused"; keyed (), refuses [409];

    /// Where a DAG stands.
    ///
    /// With `wait` and `after`, once it is no longer what the caller knows.
    DagStatus: Get "/api/v1/dag/{id}/status", READ, Dags,
        (DagPath, StatusQuery, Nothing) -> Versioned<DagStanding>,
        200 "where it stands"; refuses [409];

    /// The runs of a DAG, the latest first.
    ListDagRuns: Get "/api/v1/dag/{id}/runs", READ, Runs, (DagPath, RunQuery, Nothing) -> Runs,
        200 "its runs"; refuses [409, 410];

    /// Run a DAG again.
    StartRun: Post "/api/v1/dag/{id}/runs", PUBLISH, Runs, (DagPath, InScope, StartBody) -> RunStarted,
        201 "a new run"; keyed (), refuses [409];

    /// What holds a DAG: its latest run, or that it waits for a confirmation.
    WhyDag: Get "/api/v1/dag/{id}/why", READ, Dags, (DagPath, WhyQuery, Nothing) -> Explained,
        200 "each unfinished task, and what holds it"; refuses [409];

    /// What would be confirmed, or was.
    ///
    /// The latest revision, unless a hash says which.
    ShowDag: Get "/api/v1/dag/{id}", READ, Dags, (DagPath, RevisionQuery, Nothing) -> DagRevision,
        200 "a revision in full, and a list of all"; refuses [409];

    /// DAGs, the newest first.
    ListDags: Get "/api/v1/dag", READ, Dags, (Nothing, DagQuery, Nothing) -> Dags,
        200 "what there is";

    /// What waits for a person.
    ///
    /// DAGs before tasks, the longest waiting first.
    ListPending: Get "/api/v1/pending", READ, Dags, (Nothing, PageQuery, Nothing) -> Pending,
        200 "what waits";

    /// What a review id is about, decided or not.
    ShowReview: Get "/api/v1/pending/{review}", READ, Dags, (ReviewPath, Nothing, Nothing) -> Review,
        200 "a revision or a task";

    /// Confirm exactly this revision and start it, or let exactly this task go on.
    ///
    /// Again, it answers the same. A DAG's publisher decides about neither, owners excepted.
    ApproveReview: Post "/api/v1/pending/{review}/approve", CONFIRM, Dags,
        (ReviewPath, Nothing, ReviewDecision) -> ReviewDecided,
        200 "confirmed or approved"; keyed (), refuses [409];

    /// Refuse exactly this revision or task.
    RejectReview: Post "/api/v1/pending/{review}/reject", CONFIRM, Dags,
        (ReviewPath, Nothing, ReviewDecision) -> ReviewDecided,
        200 "refused"; keyed (), refuses [409];

    /// All runs, the latest first, of whatever DAG.
    ListRuns: Get "/api/v1/runs", READ, Runs, (Nothing, PageQuery, Nothing) -> Runs,
        200 "what ran";

    /// One run, and how far it has come.
    ShowRun: Get "/api/v1/runs/{run}", READ, Runs, (RunPath, Nothing, Nothing) -> Versioned<Run>,
        200 "the run";

    /// The tasks of a run, in the order of its definition.
    ListTasks: Get "/api/v1/runs/{run}/tasks", READ, Runs, (RunPath, TaskQuery, Nothing) -> Tasks,
        200 "its tasks";

    /// What the tasks of a run printed.
    ///
    /// A line of JSON for each line: `task_id`, `attempt`, `stream`, `at` and `text`.
    RunLogs: Get "/api/v1/runs/{run}/logs", READ, Runs, (RunPath, LogQuery, Nothing) -> LogLine,
        200 "lines"; stream "application/x-ndjson";

    /// What holds a run.
    WhyRun: Get "/api/v1/runs/{run}/why", READ, Runs, (RunPath, WhyQuery, Nothing) -> Explained,
        200 "each unfinished task, and what holds it";

    /// Stop a run.
    CancelRun: Post "/api/v1/runs/{run}/cancel", CONFIRM, Runs, (RunPath, Nothing, CancelBody) -> RunStopping,
        200 "it is stopping, or was over"; keyed (), refuses [409];

    /// Publish one task, and a DAG around it.
    ///
    /// The body is a task as a DAG has it, `external` unless it says otherwise, and beside it what belongs to the DAG.
    SubmitTask: Post "/api/v1/tasks", PUBLISH, Tasks, (Nothing, Nothing, SubmissionBody) -> Published,
        201 "created", 200 "it was there already"; keyed (), refuses [409], status (published_status);

    /// Claim tasks.
    ///
    /// It answers once there is something, or the time is over.
    ClaimTasks: Post "/api/v1/tasks/claim", WORK, Tasks, (Nothing, Nothing, ClaimBody) -> ClaimedTasks,
        200 "the caller holds them"; keyed (), refuses [409];

    /// Say that it still goes on.
    RenewLease: Post "/api/v1/tasks/{execution}/heartbeat", WORK, Tasks,
        (ExecutionPath, Nothing, HeartbeatBody) -> LeaseRenewed,
        200 "the lease lasts"; refuses [409];

    /// Say how far it is.
    ///
    /// The next holder of the task is told.
    ReportProgress: Post "/api/v1/tasks/{execution}/progress", WORK, Tasks,
        (ExecutionPath, Nothing, ProgressBody) -> Noted,
        200 "it was noted"; refuses [409];

    /// Tell what it prints.
    ///
    /// The same piece again is written once.
    AppendLog: Post "/api/v1/tasks/{execution}/log", WORK, Tasks, (ExecutionPath, Nothing, LogBody) -> LogWritten,
        200 "it was written"; refuses [409];

    /// Complete a task.
    CompleteTask: Post "/api/v1/tasks/{execution}/complete", WORK, Tasks,
        (ExecutionPath, Nothing, CompleteBody) -> AttemptEnded,
        200 "where it stands now"; keyed (), refuses [409];

    /// Give up a task.
    ///
    /// It is tried again if its definition says so.
    FailTask: Post "/api/v1/tasks/{execution}/fail", WORK, Tasks, (ExecutionPath, Nothing, FailBody) -> AttemptEnded,
        200 "where it stands now"; keyed (), refuses [409];

    /// Give a task back.
    ///
    /// For the worker that claims it next.
    ReleaseTask: Post "/api/v1/tasks/{execution}/release", WORK, Tasks,
        (ExecutionPath, Nothing, ReleaseBody) -> AttemptEnded,
        200 "where it stands now"; keyed (), refuses [409];

    /// Let a task go on that waits for a person.
    ///
    /// The publisher of the DAG does not approve its tasks, owners excepted.
    ApproveTask: Post "/api/v1/runs/{run}/tasks/{task}/approve", CONFIRM, Runs,
        (TaskPath, Nothing, TaskDecision) -> TaskDecided,
        200 "approved"; keyed (), refuses [409];

    /// Refuse a task that waits for a person.
    RejectTask: Post "/api/v1/runs/{run}/tasks/{task}/reject", CONFIRM, Runs,
        (TaskPath, Nothing, TaskDecision) -> TaskDecided,
        200 "it has failed"; keyed (), refuses [409];

    /// Carry a run on.
    ///
    /// What it did not complete, in a new run.
    ResumeRun: Post "/api/v1/runs/{run}/resume", PUBLISH, Runs, (RunPath, Nothing, ResumeBody) -> RunStarted,
        201 "a new run"; keyed (), refuses [409];

    /// Do a task once more.
    ///
    /// And everything that depends on it, in a new run.
    RetryTask: Post "/api/v1/runs/{run}/retry", PUBLISH, Runs, (RunPath, Nothing, RetryBody) -> RunStarted,
        201 "a new run"; keyed (), refuses [409];

    /// Start nothing more of a run.
    PauseRun: Post "/api/v1/runs/{run}/pause", CONFIRM, Runs, (RunPath, Nothing, Nothing) -> PausedRun,
        200 "paused"; refuses [409];

    /// Let a run go on.
    UnpauseRun: Post "/api/v1/runs/{run}/unpause", CONFIRM, Runs, (RunPath, Nothing, Nothing) -> PausedRun,
        200 "it goes on"; refuses [409];

    /// Start nothing more in a scope.
    PauseScope: Post "/api/v1/scopes/{scope}/pause", CONFIRM, Node, (ScopePath, Nothing, Nothing) -> PausedScope,
        200 "paused";

    /// Let a scope go on.
    UnpauseScope: Post "/api/v1/scopes/{scope}/unpause", CONFIRM, Node, (ScopePath, Nothing, Nothing) -> PausedScope,
        200 "it goes on";

    /// Start nothing more on this node.
    ///
    /// Until it is undrained, or ends.
    DrainNode: Post "/api/v1/node/drain", ADMIN, Node, (Nothing, Nothing, Nothing) -> Drained,
        200 "it drains";

    /// Let the node go on.
    UndrainNode: Post "/api/v1/node/undrain", ADMIN, Node, (Nothing, Nothing, Nothing) -> Drained,
        200 "it goes on";

    /// Follow along.
    ///
    /// Server-sent events in the shape of CloudEvents, from `Last-Event-ID` on, or from now. The stream has no end.
    FollowEvents: Get "/api/v1/events", READ, Events, (Nothing, EventQuery, Nothing) -> Event,
        200 "events"; refuses [410], stream "text/event-stream";

    /// Tokens, never their secrets.
    ListTokens: Get "/api/v1/tokens", ADMIN, Tokens, (Nothing, Nothing, Nothing) -> Tokens,
        200 "the latest first";

    /// Let a caller in.
    ///
    /// The secret is in this answer and nowhere else, so the call takes no `Idempotency-Key`.
    CreateToken: Post "/api/v1/tokens", ADMIN, Tokens, (Nothing, Nothing, CreateTokenBody) -> NewToken,
        201 "the token";

    /// Take a token back, at once.
    RevokeToken: Delete "/api/v1/tokens/{id}", ADMIN, Tokens, (TokenPath, Nothing, Nothing) -> TokenRevoked,
        200 "no caller gets in with it any more";

    /// The nodes this one knows, which is itself.
    ListNodes: Get "/api/v1/nodes", READ, Node, (Nothing, Nothing, Nothing) -> Nodes,
        200 "this node";

    /// Prove which node this is, before a caller sends it a token.
    ///
    /// The node signs `cis node proof 1`, the nonce and the address, each followed by a line feed, with the key that its DID
    /// follows from. It signs the address that the connection has on its side, and names of its setting `node.hosts`.
    ProveNode: Get "/api/v1/node/proof", Access::Open, Node, (Nothing, ProofQuery, Nothing) -> NodeProof,
        200 "its DID, its key and the signature"; refuses [421];

    /// Who the token is, and which node says so.
    ShowCaller: Get "/api/v1/whoami", Access::Anyone, Tokens, (Nothing, Nothing, Nothing) -> Whoami,
        200 "whose it is, and what it may do";

    /// Would work that comes in be done? If not, it says why, and what to do about it.
    ShowReady: Get "/ready", Access::Anyone, Node, (Nothing, Nothing, Nothing) -> Ready,
        200 "it would";

    /// What the coordinator of the data directory says of itself.
    ShowCoordinator: Get "/api/v1/coordinator", Access::Owner, Node, (Nothing, Nothing, Nothing) -> CoordinatorInfo,
        200 "the process that coordinates";

    /// Hand the data directory over to the process that asks; what runs goes on.
    HandOver: Post "/api/v1/coordinator/handover", Access::Owner, Node, (Nothing, Nothing, HandOverBody) -> HandingOver,
        200 "it lets go"; refuses [409];

    /// Own a run again that lost its coordinator: it ends with this stream.
    AttachRun: Post "/api/v1/runs/{run}/attach", Access::Owner, Runs, (RunPath, Nothing, Nothing) -> RunStarted,
        200 "the run, while the stream is open"; stream "application/x-ndjson";

    /// A line whenever something was committed.
    FollowChanges: Get "/api/v1/changes", Access::Owner, Events, (Nothing, Nothing, Nothing) -> Change,
        200 "lines"; stream "application/x-ndjson";

    /// Publish, confirm and run a definition in one go.
    RunDefinition: Post "/api/v1/runs", Access::Owner, Runs, (Nothing, Nothing, RunDefinitionBody) -> RunStarted,
        201 "a new run"; refuses [409];

    /// Make room, a chunk at a time: runs that are over go.
    PruneRuns: Post "/api/v1/prune", Access::Owner, Runs, (Nothing, Nothing, PruneBody) -> PrunedChunk,
        200 "what is gone";
}

/// Where a method and a path stand in the table.
pub fn find(method: &str, path: &str) -> Option<usize> {
    CALLS.iter().position(|call| call.path == path && call.method.as_str() == method)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_method_and_path_stands_once_in_the_table() {
        let all: BTreeSet<(&str, &str)> =
            CALLS.iter().map(|call| (call.method.as_str(), call.path)).collect();
        assert_eq!(all.len(), CALLS.len());
        let names: BTreeSet<&str> = CALLS.iter().map(|call| call.name).collect();
        assert_eq!(names.len(), CALLS.len());
    }
}
