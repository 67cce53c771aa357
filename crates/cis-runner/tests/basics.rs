//! What an ordinary coordinator sees: processes start, print, exit.

mod support;

use cis_runner::log::{Stream, last_line};
use cis_runner::protocol::*;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use support::{Node, exited, key, script};

#[test]
fn runs_a_script_and_says_how_it_ended() {
    let node = Node::new();
    let mut c = node.connect(1, 2);
    assert_eq!(c.run(script(1, "true")).outcome, exited(0));
    assert_eq!(c.run(script(2, "exit 7")).outcome, exited(7));
    assert_eq!(c.run(script(3, "kill -9 $$")).outcome, exited(137));
    assert!(!node.log("run/1.log").exists(), "no output, no file");
    c.ack([1, 2, 3]);
    node.assert_no_survivors();
}

#[test]
fn captures_both_streams_whatever_they_hold() {
    let node = Node::new();
    let mut c = node.connect(1, 2);
    let ended = c.run(script(1, r"printf 'out\000\377'; printf 'err' >&2; printf 'more\n'"));
    assert_eq!(ended.log.bytes, 13);
    assert_eq!(ended.log.stdout_tail, "out\0\u{fffd}more\n");
    assert_eq!(ended.log.stderr_tail, "err");
    assert_eq!(node.output("run/1.log", Stream::Stdout), (b"out\0\xffmore\n".to_vec(), 0));
    assert_eq!(node.output("run/1.log", Stream::Stderr), (b"err".to_vec(), 0));
    c.run(script(2, "echo one; echo two; echo; printf 'a long last line without an end'"));
    assert_eq!(last_line(&node.log("run/2.log")).as_deref(), Some("a long last line without an end"));
}

#[test]
fn keeps_head_and_tail_of_too_much_output() {
    let node = Node::new();
    let mut c = node.connect(1, 2);
    let mut start = script(1, "seq 1 200000");
    start.log_cap_bytes = 64 << 10;
    let ended = c.run(start);
    let whole: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(ended.log.bytes, whole.len() as u64);
    let (kept, cut) = node.output("run/1.log", Stream::Stdout);
    assert_eq!(cut, ended.log.cut_bytes);
    assert_eq!(kept.len() as u64 + cut, whole.len() as u64);
    assert!(kept.len() <= 64 << 10);
    let kept = String::from_utf8(kept).unwrap();
    let head = whole.bytes().zip(kept.bytes()).take_while(|(a, b)| a == b).count();
    let tail = whole.bytes().rev().zip(kept.bytes().rev()).take_while(|(a, b)| a == b).count();
    assert!(head > 30 << 10 && tail > 14 << 10 && head + tail >= kept.len(), "{head} + {tail}");
    assert_eq!(last_line(&node.log("run/1.log")).as_deref(), Some("200000"));
    assert!(whole.ends_with(&ended.log.stdout_tail) && ended.log.stdout_tail.len() == TAIL_BYTES);
}

#[test]
fn a_flood_does_not_hold_up_others() {
    let node = Node::new();
    let mut c = node.connect(1, 2);
    let mut flood = script(1, "head -c 300000000 /dev/zero; exec sleep 1000");
    flood.log_cap_bytes = 1 << 20;
    c.start(flood);
    for execution in 2..30 {
        assert_eq!(c.run(script(execution, "echo hi")).outcome, exited(0));
    }
    c.stop(1, true);
    let ended = c.ended();
    assert_eq!(ended.outcome, Outcome::Stopped);
    let (kept, cut) = node.output("run/1.log", Stream::Stdout);
    assert_eq!(kept.len() as u64 + cut, ended.log.bytes);
}

#[test]
fn passes_environment_directory_and_input() {
    let node = Node::new();
    std::fs::create_dir(node.dir.path().join("sub")).unwrap();
    let mut c = node.connect(1, 2);
    let mut start = script(1, "pwd; echo $GREETING; cat");
    start.workdir = Some("sub".into());
    start.env.push(("GREETING".into(), "hello".into()));
    let text: String = (0..100_000).map(|n| format!("{n} ")).collect();
    start.stdin = Some(text.clone());
    let ended = c.run(start);
    assert_eq!(ended.outcome, exited(0));
    let expected = format!("{}/sub\nhello\n{text}", node.dir.path().canonicalize().unwrap().display());
    assert_eq!(String::from_utf8(node.output("run/1.log", Stream::Stdout).0).unwrap(), expected);
    assert_eq!(c.run(script(2, "read x; exec true")).outcome, exited(0), "no input: empty");
    let mut unread = script(3, "exit 3");
    unread.stdin = Some(text);
    assert_eq!(c.run(unread).outcome, exited(3), "input nobody reads");
}

#[test]
fn says_what_is_missing() {
    let node = Node::new();
    let mut c = node.connect(1, 2);
    let mut broken = |change: &dyn Fn(&mut Start), execution| {
        let mut start = script(execution, "true");
        change(&mut start);
        match c.run(start).outcome {
            Outcome::Broken { why } => why,
            other => panic!("{other:?}"),
        }
    };
    let why = broken(&|s| s.workdir = Some("not/there".into()), 1);
    assert!(why.contains("not/there") && why.contains("No such file"), "{why}");
    assert!(broken(&|s| s.argv = vec!["no-such-program".into()], 2).contains("`no-such-program`"));
    assert!(broken(&|s| s.argv = vec!["/no/such".into()], 3).contains("/no/such"));
    assert!(broken(&|s| s.argv = vec![], 4).contains("no program"));
    assert!(broken(&|s| s.argv.push("a\0b".into()), 5).contains("NUL"));
    assert!(broken(&|s| s.context = 9, 6).contains("context 9"));
    assert!(broken(&|s| s.log = "../x".into(), 7).contains("../x"));
}

#[test]
fn hands_over_outputs() {
    let node = Node::new();
    let mut c = node.connect(1, 2);
    let file = node.dir.path().join("outputs");
    let mut with_outputs = |execution, text: &str| {
        let mut start = script(execution, text);
        start.env.push(("CIS_OUTPUT".into(), file.to_str().unwrap().into()));
        let ended = c.run(start);
        assert!(!file.exists());
        (ended.outcome, ended.outputs)
    };
    assert_eq!(with_outputs(1, "true"), (exited(0), None));
    assert_eq!(with_outputs(2, "echo a=1 > $CIS_OUTPUT"), (exited(0), Some("a=1\n".into())));
    assert_eq!(with_outputs(3, "echo a=1 > $CIS_OUTPUT; exit 4"), (exited(4), Some("a=1\n".into())));
    for (execution, bad) in [(4, r"printf '\377'"), (5, "head -c 1048577 /dev/zero")] {
        let (outcome, outputs) = with_outputs(execution, &format!("{bad} > $CIS_OUTPUT"));
        assert!(matches!(outcome, Outcome::Broken { .. }) && outputs.is_none(), "{outcome:?}");
    }
    assert!(
        matches!(with_outputs(6, "mkfifo $CIS_OUTPUT").0, Outcome::Broken { .. }),
        "a pipe blocks nobody"
    );
}

#[test]
fn runs_no_more_than_its_slots_and_in_order() {
    let node = Node::new();
    let mut c = node.connect(1, 1);
    let file = node.dir.path().join("order");
    for execution in 1..=20 {
        // Each notes its start and its end: with one slot they cannot interleave.
        c.start(script(
            execution,
            &format!("echo s{execution} >> {0}; echo e{execution} >> {0}", file.display()),
        ));
    }
    c.ended_many(20);
    let expected: String = (1..=20).map(|n| format!("s{n}\ne{n}\n")).collect();
    assert_eq!(std::fs::read_to_string(file).unwrap(), expected);
}

/// Its own descriptors are more than a task's; the task's limit stays what it would have been.
#[test]
fn more_run_at_once_than_the_limit_of_files_would_let() {
    const SLOTS: u32 = 30;
    let node = Node::new();
    let runner = Pid::from_raw(node.connect(1, 1).runner as i32).unwrap();
    let before = prlimit(Some(runner), Resource::Nofile, Rlimit { current: Some(64), maximum: Some(4096) });
    assert!(before.is_ok(), "{before:?}");
    let mut c = node.connect(2, SLOTS);
    for execution in 1..=i64::from(SLOTS) {
        c.start(script(execution, "ulimit -n; exec sleep 1000"));
    }
    for execution in 1..=i64::from(SLOTS) {
        c.wait_started(execution);
        node.wait_for_output(&format!("run/{execution}.log"), "64\n");
    }
    for execution in 1..=i64::from(SLOTS) {
        c.stop(execution, true);
    }
    assert!(c.ended_many(SLOTS as usize).iter().all(|ended| ended.outcome == Outcome::Stopped));
}

#[test]
fn starts_each_attempt_once() {
    let node = Node::new();
    let file = node.dir.path().join("count");
    let text = format!("echo x >> {}", file.display());
    let mut c = node.connect(1, 4);
    for _ in 0..5 {
        c.start(script(1, &text));
    }
    c.ended();
    c.start(script(1, &text));
    drop(c);
    let mut c = node.connect(2, 4);
    c.start(script(1, &text));
    assert_eq!(c.ended().key, key(1));
    assert_eq!(c.run(script(2, "true")).key, key(2), "nothing more of the first");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "x\n");
}

#[test]
fn children_start_with_default_signals() {
    let node = Node::new();
    let mut c = node.connect(1, 1);
    let ended = c.run(script(1, "cat /proc/self/status; ls /proc/self/fd | wc -l"));
    let status = &ended.log.stdout_tail;
    for set in ["SigBlk:", "SigIgn:"] {
        let signals = status.lines().find_map(|line| line.strip_prefix(set)).unwrap();
        // 32 and 33 belong to the C library, which sees to them itself.
        let ours = u64::from_str_radix(signals.trim(), 16).unwrap() & !(0b11 << 31);
        assert_eq!(ours, 0, "{status}");
    }
    assert!(status.ends_with("\n4\n"), "no descriptors but their own: {status}");
}

#[test]
fn tells_of_starts_only_when_they_last() {
    let node = Node::new();
    let mut c = node.connect(1, 2);
    c.start(script(1, "exec sleep 1000"));
    c.wait_started(1);
    c.stop(1, false);
    assert_eq!(c.ended().outcome, Outcome::Stopped);
}

#[test]
fn works_in_a_very_deep_directory() {
    let node = Node::below(&["a-directory-with-a-rather-long-name"; 8].join("/"));
    assert!(node.data.as_os_str().len() > 200);
    let mut c = node.connect(1, 2);
    assert_eq!(c.run(script(1, "echo deep")).outcome, exited(0));
    assert_eq!(node.output("run/1.log", Stream::Stdout).0, b"deep\n");
}
