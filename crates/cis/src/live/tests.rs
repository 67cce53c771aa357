use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use cis_core::source::Timestamp;

use super::*;

const SIZE: Size = Size { cols: 60, rows: 12 };

fn view(totals: &[(TaskStatus, u32)]) -> RunView {
    let mut counted = Totals::default();
    for (status, count) in totals {
        (0..*count).for_each(|_| counted.add(*status));
    }
    RunView {
        title: "build#7".into(),
        state: RunStatus::Running,
        totals: counted,
        elapsed: Millis(12_345),
        eta: None,
        tasks: Vec::new(),
        running: Vec::new(),
        failures: Vec::new(),
    }
}

fn task(title: &str, state: TaskStatus, elapsed: Option<u64>, note: &str) -> TaskLine {
    TaskLine { title: title.into(), state, elapsed: elapsed.map(Millis), note: note.into() }
}

fn plain(lines: &[String]) -> Vec<String> {
    lines.iter().map(|line| anstream::adapter::strip_str(line).to_string()).collect()
}

fn large() -> RunView {
    use TaskStatus as S;
    let mut view = view(&[
        (S::Completed, 2_979),
        (S::Failed, 21),
        (S::Running, 8),
        (S::Ready, 100),
        (S::Pending, 1_892),
    ]);
    view.eta = Some(Millis(40_000));
    view.running = (0..8u64)
        .map(|i| RunningTask {
            title: format!("compile-{i}"),
            state: S::Running,
            elapsed: Millis(3_200 - i * 100),
            last_line: "gcc -O2 \u{1b}[2Jmain.c with a line that is far too long for this screen".into(),
        })
        .collect();
    view.failures =
        (0..21).map(|i| FailedTask { title: format!("lint-{i}"), why: "exit 1".into() }).collect();
    view
}

#[test]
fn a_large_run_shows_what_waits_for_a_person() {
    use TaskStatus as S;
    let mut view = view(&[(S::Completed, 100), (S::Waiting, 1), (S::Running, 1)]);
    let line = |title: &str, state, last_line: &str| RunningTask {
        title: title.into(),
        state,
        elapsed: Millis(2_000),
        last_line: last_line.into(),
    };
    view.running = vec![line("gate", S::Waiting, "Ship it?"), line("build", S::Running, "cc")];
    let lines = plain(&render(&view, SIZE));
    assert!(lines.contains(&"? gate      2.0s  Ship it?".to_owned()), "{lines:#?}");
    assert!(lines.contains(&"● build     2.0s  cc".to_owned()), "{lines:#?}");
    assert!(lines[2].starts_with("? 1 waiting"), "{lines:#?}");
}

#[test]
fn a_small_run_is_shown_task_by_task() {
    use TaskStatus as S;
    let mut view = view(&[(S::Completed, 1), (S::Failed, 1), (S::Running, 1), (S::Pending, 1)]);
    view.tasks = vec![
        task("fetch", S::Completed, Some(430), ""),
        task("build", S::Running, Some(11_900), "Compiling \u{1b}]0;x\u{7}core"),
        task("lint", S::Failed, Some(65_000), "exit 1"),
        task("test", S::Pending, None, ""),
    ];
    assert_eq!(
        plain(&render(&view, SIZE)),
        [
            "● build#7  running  2/4  12.3s",
            "✓ fetch    430ms",
            "● build    11.9s  Compiling core",
            "✗ lint    1m 05s  exit 1",
            "○ test",
        ]
    );
}

#[test]
fn a_large_run_is_a_bar_counts_what_runs_and_what_failed() {
    assert_eq!(
        plain(&render(&large(), SIZE)),
        [
            "● build#7  running  3,000/5,000  12.3s  about 40.0s to go",
            "━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━────────────────────── \u{20}60%",
            "✗ 21 failed  ● 8 running  ✓ 2,979 completed  ◌ 100 ready  ○…",
            "● compile-0     3.2s  gcc -O2 main.c with a line that is fa…",
            "● compile-1     3.1s  gcc -O2 main.c with a line that is fa…",
            "● compile-2     3.0s  gcc -O2 main.c with a line that is fa…",
            "● compile-3     2.9s  gcc -O2 main.c with a line that is fa…",
            "● compile-4     2.8s  gcc -O2 main.c with a line that is fa…",
            "  … and 3 more running",
            "✗ lint-20  exit 1",
            "  … and 20 more failed",
        ]
    );
}

#[test]
fn no_view_is_wider_or_higher_than_the_screen() {
    let mut small = view(&[(TaskStatus::Running, 3)]);
    small.tasks =
        (0..3).map(|i| task(&"日本".repeat(40 + i), TaskStatus::Running, Some(1), "語語語")).collect();
    for view in [small, large()] {
        for cols in [0, 1, 5, 20, 39, 200] {
            for rows in [0, 1, 2, 3, 5, 50] {
                let lines = plain(&render(&view, Size { cols, rows }));
                assert!(lines.len() < usize::from(rows).max(2), "{rows} rows: {lines:?}");
                assert!(
                    lines.iter().all(|line| columns(line) <= usize::from(cols)),
                    "{cols} columns: {lines:?}"
                );
            }
        }
    }
}

#[test]
fn a_run_of_one_task_and_an_empty_moment_draw() {
    let empty = view(&[]);
    assert!(plain(&render(&empty, SIZE))[1].ends_with("  0%"));
    let done = view(&[(TaskStatus::Completed, 1)]);
    assert!(plain(&render(&done, SIZE))[1].ends_with("100%"));
}

#[test]
fn totals_follow_moves() {
    let mut totals = Totals::default();
    totals.add(TaskStatus::Ready);
    totals.shift(TaskStatus::Ready, TaskStatus::Running);
    assert_eq!((totals.of(TaskStatus::Ready), totals.of(TaskStatus::Running), totals.all()), (0, 1, 1));
    totals.shift(TaskStatus::Running, TaskStatus::TimedOut);
    assert_eq!((totals.ended(), totals.failed()), (1, 1));
}

#[test]
fn dumb_terminals_and_pipes_get_lines() {
    assert!(wanted(true, Some("xterm")) && wanted(true, None));
    assert!(!wanted(true, Some("dumb")) && !wanted(false, Some("xterm")));
}

/// Bytes and how many writes they came in.
#[derive(Debug, Clone, Default)]
struct Wire(Rc<RefCell<(Vec<u8>, usize)>>);

impl Wire {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut self.0.borrow_mut().0)).unwrap()
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut wire = self.0.borrow_mut();
        wire.0.extend_from_slice(bytes);
        wire.1 += 1;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lines(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

#[test]
fn frames_are_drawn_over_each_other() {
    let wire = Wire::default();
    let mut screen = Screen::new(wire.clone(), true);
    screen.draw(lines(&["one", "two"]), SIZE, Timestamp(0)).unwrap();
    assert_eq!(wire.take(), "\x1b[?2026h\x1b[?25l\rone\x1b[K\r\ntwo\x1b[K\r\n\x1b[J\x1b[?2026l");
    assert!(!screen.due(Timestamp(99)) && screen.due(Timestamp(100)));
    screen.draw(lines(&["one", "two"]), SIZE, Timestamp(100)).unwrap();
    assert_eq!(wire.take(), "", "nothing has changed");
    screen.draw(lines(&["three"]), SIZE, Timestamp(200)).unwrap();
    assert_eq!(wire.take(), "\x1b[?2026h\r\x1b[2Athree\x1b[K\r\n\x1b[J\x1b[?2026l");
    screen.print("kept").unwrap();
    assert_eq!(wire.take(), "\x1b[?2026h\r\x1b[1A\x1b[Jkept\r\nthree\x1b[K\r\n\x1b[?2026l");
    drop(screen);
    assert_eq!(wire.take(), "\x1b[?25h");
}

#[test]
fn a_narrower_screen_has_broken_the_last_frame() {
    let wire = Wire::default();
    let mut screen = Screen::new(wire.clone(), false);
    screen.draw(vec!["x".repeat(50), String::new()], SIZE, Timestamp(0)).unwrap();
    wire.take();
    screen.draw(lines(&["y"]), Size { cols: 20, rows: 12 }, Timestamp(100)).unwrap();
    assert!(wire.take().contains("\r\x1b[4Ay"), "three rows and one");
    screen.draw(vec!["z".to_owned(); 40], Size { cols: 20, rows: 5 }, Timestamp(200)).unwrap();
    assert_eq!(wire.take().matches('z').count(), 4);
    screen.clear().unwrap();
    assert_eq!(wire.take(), "\r\x1b[4A\x1b[J\x1b[?25h");
}

#[test]
fn without_colour_only_the_cursor_moves() {
    let wire = Wire::default();
    let mut screen = Screen::new(wire.clone(), false);
    screen.draw(lines(&["\x1b[31mred\x1b[0m"]), SIZE, Timestamp(0)).unwrap();
    assert!(wire.take().contains("\rred\x1b[K"));
}

#[test]
fn transitions_read_well() {
    let done = Transition {
        title: "build",
        state: TaskStatus::Completed,
        elapsed: Some(Millis(1_234)),
        why: "",
        attempt: None,
        retry_in: None,
    };
    let failed = Transition {
        title: "test\u{1b}[2J",
        state: TaskStatus::Failed,
        why: "exit 1",
        attempt: Some((2, 3)),
        retry_in: Some(Millis(2_000)),
        ..done
    };
    let skipped = Transition { title: "deploy", state: TaskStatus::Skipped, why: "`test` failed", ..done };
    assert_eq!(
        plain(&[done.line(), failed.line(), skipped.line()]),
        ["✓ build  1.2s", "✗ test\\u{1b}[2J  exit 1 (attempt 2/3, retry in 2.0s)", "↷ deploy  `test` failed"]
    );
}

#[test]
fn ten_thousand_lines_are_a_few_writes() {
    let wire = Wire::default();
    let mut out = Plain::new(wire.clone());
    out.say("first", Timestamp(0)).unwrap();
    assert_eq!(wire.0.borrow().1, 1, "the first line is out at once");
    for _ in 0..10_000 {
        out.say("a line of the usual length", Timestamp(1)).unwrap();
    }
    out.flush().unwrap();
    assert!(wire.0.borrow().1 < 10, "{}", wire.0.borrow().1);
    assert_eq!(wire.take().lines().count(), 10_001);
}
