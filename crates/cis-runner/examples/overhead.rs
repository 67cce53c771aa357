//! What the runner itself costs per task: `overhead RUNNER-EXE [tasks] [slots] [ahead] [script]`.
//!
//! Hands over tasks as a coordinator would, `ahead` more than there are slots, and prints the wall time and the
//! processor time the runner spent, user and system apart (system includes making the processes). With
//! `CIS_RUNNER_INSTANT=1` nothing is started and what remains is journal and messages.

use std::error::Error;
use std::io::{Read, Write};
use std::path::Path;

use cis_runner::client::{Decoder, connect_or_spawn, encode};
use cis_runner::protocol::{AttemptKey, FromRunner, OLDEST, PROTOCOL, Start, Text, ToRunner};
use rustix::time::{ClockId, clock_gettime};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let exe = arguments.next().ok_or("which runner?")?;
    let tasks: i64 = arguments.next().map_or(Ok(10_000), |n| n.parse())?;
    let slots: u32 = arguments.next().map_or(Ok(2), |n| n.parse())?;
    let ahead: i64 = arguments.next().map_or(Ok(8), |n| n.parse())?;
    let script = arguments.next().unwrap_or_else(|| "true".into());
    let dir = tempfile::tempdir()?;
    let mut stream = connect_or_spawn(dir.path(), Path::new(&exe))?;
    let mut decoder = Decoder::new();
    stream.write_all(&encode(&ToRunner::Hello {
        protocol: PROTOCOL,
        oldest: OLDEST,
        epoch: 1,
        slots,
        key: None,
        directory: None,
    })?)?;
    let env = std::env::vars().map(|(name, value)| (Text::Utf8(name), Text::Utf8(value))).collect();
    stream.write_all(&encode(&ToRunner::Context { context: 1, env, cwd: dir.path().to_owned() })?)?;
    let mut pid = 0;
    let (mut sent, mut ended) = (0, 0);
    let begun = clock_gettime(ClockId::Monotonic);
    let mut buffer = vec![0; 64 << 10];
    while ended < tasks {
        let mut out = Vec::new();
        while sent < tasks && sent - ended < i64::from(slots) + ahead {
            sent += 1;
            out.extend(encode(&ToRunner::Start(Box::new(start(sent, &script))))?);
        }
        stream.write_all(&out)?;
        let n = stream.read(&mut buffer)?;
        decoder.push(&buffer[..n]);
        let mut keys = Vec::new();
        while let Some(message) = decoder.pull()? {
            match message {
                FromRunner::Welcome { pid: runner, .. } => pid = runner,
                FromRunner::Ended(message) => keys.push(message.key),
                _ => {}
            }
        }
        ended += keys.len() as i64;
        stream.write_all(&encode(&ToRunner::Ack { keys })?)?;
    }
    let done = clock_gettime(ClockId::Monotonic);
    let wall_s = (done.tv_sec - begun.tv_sec) as f64 + (done.tv_nsec - begun.tv_nsec) as f64 / 1e9;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<i64> =
        stat.rsplit(')').next().unwrap_or("").split(' ').filter_map(|f| f.parse().ok()).collect();
    let per_task = |ticks: i64| ticks as f64 * 10_000.0 / tasks as f64;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let rss = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("");
    println!(
        "{tasks} tasks in {wall_s:.2} s: {:.3} ms each; runner: user {:.1} µs, system {:.1} µs per task; {rss}",
        wall_s * 1e3 / tasks as f64,
        per_task(fields[10]),
        per_task(fields[11]),
    );
    Ok(())
}

fn start(execution: i64, script: &str) -> Start {
    let key = AttemptKey { execution, fence: (1 << 32) | execution };
    let fence = key.fence.to_string();
    let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    Start {
        key,
        context: 1,
        argv: vec!["/bin/sh".into(), "-c".into(), script.into()],
        env: vec![
            variable("CIS_RUN_ID", "01936e0c-2b8e-7000-8000-000000000000"),
            variable("CIS_TASK_ID", "task"),
            variable("CIS_ATTEMPT", "1"),
            variable("CIS_FENCE", &fence),
            variable("CIS_OUTPUT", &format!("/tmp/cis-no-such-output-{execution}")),
        ],
        workdir: None,
        stdin: None,
        log: format!("run/{execution}.log"),
        timeout_ms: Some(3_600_000),
        grace_ms: 10_000,
        log_cap_bytes: 10 << 20,
        tied: false,
        detach: false,
        lane: None,
    }
}
