//! A person at a terminal, now and then.

use std::process::{Command, Stdio};
use std::time::Duration;

use super::{Call, Course, Notes};
use crate::clock::{Stopwatch, pause};
use crate::crash::victim::program_beside_us;

const EVERY: Duration = Duration::from_secs(2);

const COMMANDS: [&[&str]; 2] = [&["dag", "list", "--scope", "global"], &["dag", "runs"]];

pub(in crate::siege) fn run(course: &Course, token: &str) -> anyhow::Result<Notes> {
    let (cis, mut notes) = (program_beside_us("cis")?, Notes::default());
    let commands = COMMANDS.iter().cycle();
    for command in commands.take_while(|_| course.goes_on()) {
        let watch = Stopwatch::start();
        let mut cis = Command::new(&cis);
        cis.args(*command).env("CIS_NODE", format!("http://{}", course.node)).env("CIS_TOKEN", token);
        let done = cis.stdin(Stdio::null()).output()?;
        let took = watch.elapsed();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        let refusal = (!done.status.success()).then(|| format!("`cis {}`: {said}", command.join(" ")));
        notes.calls.push(Call { kind: "cis", took, refusal });
        pause(EVERY);
    }
    Ok(notes)
}
