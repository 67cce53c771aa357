//! What has been asked of the node, counted; and all of it told in the text format of Prometheus. Labels are names of
//! routes, methods, statuses and kinds, never anything a caller chose.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cis_store::Written;
use cis_store::census::Census;
use tokio::time::Instant;

use crate::limit::InUse;
use crate::table::ROUTES;

/// Upper bounds of the buckets that requests are counted into, in seconds.
const BOUNDS: [f64; 11] = [0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// Counts since the node started.
#[derive(Debug)]
pub(crate) struct Meter {
    /// By route as in the table; what is none comes last.
    calls: Vec<Mutex<Calls>>,
    followers: Arc<AtomicI64>,
    started: Instant,
}

/// Method and path of a route; both `other` for what is none: what is told must not grow with what callers make up.
pub(crate) fn name(route: Option<usize>) -> (&'static str, &'static str) {
    route.and_then(|route| ROUTES.get(route)).map_or(("other", "other"), |route| (route.method, route.path))
}

#[derive(Debug, Default)]
struct Calls {
    statuses: BTreeMap<u16, u64>,
    /// How long they took, by bucket; the last one has no bound.
    took: [u64; BOUNDS.len() + 1],
    took_sum: Duration,
}

/// Somebody who follows along, for as long as it is held.
#[derive(Debug)]
pub(crate) struct Follower(Arc<AtomicI64>);

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What is counted elsewhere.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) census: Census,
    pub(crate) written: Written,
    pub(crate) in_use: InUse,
    pub(crate) rss_bytes: Option<u64>,
    pub(crate) draining: bool,
}

impl Meter {
    pub(crate) fn new(started: Instant) -> Self {
        let calls = (0..=ROUTES.len()).map(|_| Mutex::default()).collect();
        Self { calls, followers: Arc::default(), started }
    }

    /// How many requests were counted.
    pub(crate) fn requests_so_far(&self) -> u64 {
        self.calls.iter().map(|calls| lock(calls).statuses.values().sum::<u64>()).sum()
    }

    /// Counts one request; `took` for those whose time says something.
    pub(crate) fn count(&self, route: Option<usize>, status: u16, took: Option<Duration>) {
        let mut calls = lock(&self.calls[route.unwrap_or(ROUTES.len())]);
        *calls.statuses.entry(status).or_default() += 1;
        if let Some(took) = took {
            let seconds = took.as_secs_f64();
            let bucket = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
            calls.took[bucket] += 1;
            calls.took_sum += took;
        }
    }

    /// Counts somebody who follows along.
    pub(crate) fn follower(&self) -> Follower {
        self.followers.fetch_add(1, Ordering::Relaxed);
        Follower(self.followers.clone())
    }

    /// All of it, as Prometheus reads it.
    pub(crate) fn text(&self, seen: &Seen, now: Instant) -> String {
        let mut page = Page::default();
        page.one("cis_build_info", "gauge", "The version in use.", &version(), 1.0);
        let uptime = now.saturating_duration_since(self.started).as_secs_f64();
        page.one("cis_uptime_seconds", "gauge", "Since the node started.", "", uptime);
        if let Some(bytes) = seen.rss_bytes {
            page.one("process_resident_memory_bytes", "gauge", "Memory in use.", "", count(bytes));
        }
        self.requests(&mut page);
        let Seen { census, written, in_use, .. } = seen;
        let states = [("working", in_use.working), ("waiting", in_use.waiting)];
        page.family("cis_http_requests_under_way", "gauge", "Requests that do something, or wait.");
        states.iter().for_each(|(state, places)| page.sample("", &label("state", state), count(*places)));
        let followers = self.followers.load(Ordering::Relaxed);
        let followers = count(u64::try_from(followers).unwrap_or(0));
        page.one("cis_event_followers", "gauge", "Connections that follow events.", "", followers);
        page.counts("cis_runs", "Runs that are not over.", "status", &census.runs);
        page.counts("cis_tasks", "Tasks of runs that are not over.", "status", &census.tasks);
        page.counts("cis_queue_depth", "Tasks that could be claimed now.", "kind", &census.claimable);
        page.counts("cis_tasks_held", "Ready tasks that are held back.", "by", &census.held);
        page.one("cis_runs_paused", "gauge", "Runs that are paused.", "", count(census.paused_runs));
        page.one("cis_scopes_paused", "gauge", "Scopes that are paused.", "", count(census.paused_scopes));
        page.one(
            "cis_draining",
            "gauge",
            "1 while nothing is claimed.",
            "",
            f64::from(u8::from(seen.draining)),
        );
        page.one("cis_commits_total", "counter", "Transactions written.", "", count(written.commits));
        let operations = count(written.operations);
        page.one("cis_operations_total", "counter", "Operations in these transactions.", "", operations);
        page.0
    }

    fn requests(&self, page: &mut Page) {
        let met = (0..).zip(&self.calls).map(|(route, calls)| (name(Some(route)), lock(calls)));
        let met: Vec<_> = met.filter(|(_, calls)| !calls.statuses.is_empty()).collect();
        page.family("cis_http_requests_total", "counter", "Requests answered.");
        for ((method, path), calls) in &met {
            for (status, times) in &calls.statuses {
                let labels = format!("{},{}", route(method, path), label("status", &status.to_string()));
                page.sample("", &labels, count(*times));
            }
        }
        let about = "Until the answer begins; requests that wait for something are left out.";
        page.family("cis_http_request_duration_seconds", "histogram", about);
        for ((method, path), calls) in &met {
            let (route, mut below) = (route(method, path), 0);
            for (bound, times) in
                BOUNDS.iter().map(ToString::to_string).chain(["+Inf".to_owned()]).zip(calls.took)
            {
                below += times;
                page.sample("_bucket", &format!("{route},{}", label("le", &bound)), count(below));
            }
            page.sample("_sum", &route, calls.took_sum.as_secs_f64());
            page.sample("_count", &route, count(below));
        }
    }
}

/// The page as it grows, and the family of the samples that come next.
#[derive(Default)]
struct Page(String, String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        name.clone_into(&mut self.1);
    }

    fn sample(&mut self, suffix: &str, labels: &str, value: f64) {
        let name = &self.1;
        let _ = match labels {
            "" => writeln!(self.0, "{name}{suffix} {value}"),
            labels => writeln!(self.0, "{name}{suffix}{{{labels}}} {value}"),
        };
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, labels: &str, value: f64) {
        self.family(name, kind, help);
        self.sample("", labels, value);
    }

    fn counts(&mut self, name: &str, help: &str, by: &str, counts: &[(String, u64)]) {
        self.family(name, "gauge", help);
        counts.iter().for_each(|(value, times)| self.sample("", &label(by, value), count(*times)));
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn label(name: &str, value: &str) -> String {
    format!("{name}=\"{value}\"")
}

fn route(method: &str, path: &str) -> String {
    format!("{},{}", label("method", method), label("route", path))
}

fn version() -> String {
    label("version", env!("CARGO_PKG_VERSION"))
}

/// Prometheus has no integers; up to 2^53 nothing is lost.
#[allow(clippy::cast_precision_loss, reason = "see above")]
fn count(of: u64) -> f64 {
    of as f64
}
