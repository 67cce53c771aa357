//! Just enough of an HTTP client to call a node the way anything else does.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::{Arc, Barrier};

use serde_json::{Value, json};

use super::{Node, Running};

/// A node that is up.
pub struct Up {
    pub running: Running,
    pub client: Client,
}

/// Somebody who calls it.
#[derive(Clone)]
pub struct Client {
    pub address: Arc<str>,
    pub token: String,
}

/// What `call` answers to each of `clients` who all begin at the same moment.
pub fn at_once(clients: usize, call: impl Fn(usize) -> Answer + Sync) -> Vec<Answer> {
    let start = Barrier::new(clients);
    std::thread::scope(|scope| {
        let call = |n| {
            let (start, call) = (&start, &call);
            scope.spawn(move || {
                start.wait();
                call(n)
            })
        };
        let callers: Vec<_> = (0..clients).map(call).collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    })
}

/// A DAG of external tasks without dependencies, each with `more` settings.
pub fn field(id: &str, tasks: usize, more: &Value) -> String {
    let task = |n| {
        let mut task = json!({"id": format!("t{n}"), "type": "external", "input": {"n": n}});
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        task
    };
    json!({"dag_id": id, "tasks": (0..tasks).map(task).collect::<Vec<_>>()}).to_string()
}

/// What it answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Node {
    /// Starts `cis node` on a free port; answers it with its owner.
    pub fn up(&self) -> Up {
        self.up_by(self.command(["node", "start", "--bind", "127.0.0.1:0"]))
    }

    /// The same after these commands of a shell, such as limits.
    pub fn up_after(&self, setup: &str) -> Up {
        let cis = self.command(["node", "start", "--bind", "127.0.0.1:0"]);
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", &format!("{setup}; exec \"$0\" \"$@\"")])
            .arg(cis.get_program())
            .args(cis.get_args());
        command.env_clear().envs(cis.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.current_dir(self.dir()).stdin(Stdio::null());
        self.up_by(command)
    }

    fn up_by(&self, command: Command) -> Up {
        let mut running = Running::start(command);
        let line = running.until("http://");
        let address = line.split("http://").nth(1).unwrap().trim().into();
        let token = std::fs::read_to_string(self.data.join("admin.token")).unwrap().trim().to_owned();
        Up { running, client: Client { address, token } }
    }

    /// The secret of a new token.
    pub fn token<const N: usize>(&self, args: [&str; N]) -> String {
        let made = self.ok([["token", "create"].as_slice(), args.as_slice()].concat());
        made.out.trim().to_owned()
    }
}

impl Client {
    /// The same with another token.
    pub fn with(&self, token: &str) -> Self {
        Self { address: self.address.clone(), token: token.to_owned() }
    }

    pub fn get(&self, path: &str) -> Answer {
        self.call("GET", path, &[], "")
    }

    pub fn post(&self, path: &str, body: &str) -> Answer {
        self.call("POST", path, &[], body)
    }

    /// Publishes and confirms.
    pub fn run(&self, dag: &str) -> Value {
        let published = self.post("/api/v1/dag/publish", dag).json();
        let id = published["dag_id"].as_str().unwrap_or_else(|| panic!("{published}"));
        self.post(&format!("/api/v1/dag/{id}/confirm"), "").json()
    }

    /// Waits for a run's end.
    pub fn until_over(&self, dag: &str) -> Value {
        let ends = ["completed", "failed", "cancelled", "timed_out"];
        self.until(dag, |told| ends.contains(&told["status"].as_str().unwrap()))
    }

    /// Waits, as a client would, until what is told of a DAG is `enough`: by asking to be told.
    pub fn until(&self, dag: &str, enough: impl Fn(&Value) -> bool) -> Value {
        let mut told = self.get(&format!("/api/v1/dag/{dag}/status")).json();
        while !enough(&told) {
            let version = &told["version"];
            told = self.get(&format!("/api/v1/dag/{dag}/status?wait=30s&after={version}")).json();
        }
        told
    }

    /// Claims tasks.
    pub fn claim(&self, body: &Value) -> Vec<Value> {
        let answer = self.post("/api/v1/tasks/claim", &body.to_string());
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["tasks"].as_array().unwrap().clone()
    }

    /// Says something of a claimed task.
    pub fn say(&self, task: &Value, what: &str, mut body: Value) -> Answer {
        body["fence"] = task["fence"].clone();
        self.post(&format!("/api/v1/tasks/{}/{what}", task["execution_id"]), &body.to_string())
    }

    /// Calls with the token and whatever headers are given.
    pub fn call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let bearer = format!("Bearer {}", self.token);
        let mut all = vec![("Authorization", bearer.as_str())];
        all.extend(headers.iter().filter(|(name, _)| *name != "Host"));
        let host = headers.iter().find(|(name, _)| *name == "Host").map_or(&*self.address, |(_, host)| host);
        self.raw(method, path, host, &all, body)
    }

    /// Calls with exactly these headers.
    pub fn raw(&self, method: &str, path: &str, host: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut stream = self.send(method, path, host, headers, body);
        let (status, headers) = head(&mut stream);
        let mut answer = Answer { status, headers, body: String::new() };
        // A stream of events has no end; that it began is the answer.
        if answer.header("content-type") != Some("text/event-stream") {
            stream.read_to_string(&mut answer.body).unwrap();
        }
        answer
    }

    fn send(
        &self,
        method: &str,
        path: &str,
        host: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(&*self.address).unwrap();
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        text += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(text.as_bytes()).unwrap();
        BufReader::new(stream)
    }

    /// Calls and leaves the answer unread.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> BufReader<TcpStream> {
        let bearer = format!("Bearer {}", self.token);
        self.send(method, path, &self.address, &[("Authorization", bearer.as_str())], body)
    }

    /// Follows events from the beginning until the node ends the stream.
    pub fn listen(&self, mut hear: impl FnMut(Value)) {
        let mut stream = self.deaf();
        assert_eq!(head(&mut stream).0, 200);
        for line in stream.lines() {
            if let Some(data) = line.unwrap().strip_prefix("data: ") {
                hear(serde_json::from_str(data).unwrap());
            }
        }
    }

    /// Reads lines of JSON until the node ends the stream, or `enough` says so of one.
    pub fn lines(&self, path: &str, mut enough: impl FnMut(Value) -> bool) {
        let bearer = format!("Bearer {}", self.token);
        let mut stream = self.send("GET", path, &self.address, &[("Authorization", bearer.as_str())], "");
        assert_eq!(head(&mut stream).0, 200, "{path}");
        // Between them stand the lengths of chunks.
        let lines = stream.lines().map(Result::unwrap).filter(|line| line.starts_with('{'));
        for line in lines {
            if enough(serde_json::from_str(&line).unwrap()) {
                return;
            }
        }
    }

    /// Asks for events and never reads them.
    pub fn deaf(&self) -> BufReader<TcpStream> {
        self.ask("GET", "/api/v1/events?after=0", "")
    }

    /// Follows events after `last`, until `enough` says so of an id and its data; then cuts the connection.
    pub fn follow(&self, last: Option<u64>, enough: impl FnMut(u64, Value) -> bool) {
        self.follow_some("", last, enough);
    }

    /// The same, of what the query asks for.
    pub fn follow_some(&self, query: &str, last: Option<u64>, mut enough: impl FnMut(u64, Value) -> bool) {
        let bearer = format!("Bearer {}", self.token);
        let last = last.unwrap_or(0).to_string();
        let headers = [("Authorization", bearer.as_str()), ("Last-Event-ID", last.as_str())];
        let mut stream = self.send("GET", &format!("/api/v1/events{query}"), &self.address, &headers, "");
        assert_eq!(head(&mut stream).0, 200);
        let mut id = 0;
        for line in stream.lines() {
            let line = line.unwrap();
            if let Some(text) = line.strip_prefix("id: ") {
                id = text.parse().unwrap();
            } else if let Some(data) = line.strip_prefix("data: ")
                && enough(id, serde_json::from_str(data).unwrap())
            {
                return;
            }
        }
        panic!("the stream ended");
    }
}

fn head(stream: &mut BufReader<TcpStream>) -> (u16, Vec<(String, String)>) {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("no status in `{line}`")).parse().unwrap();
    let mut headers = Vec::new();
    loop {
        line.clear();
        stream.read_line(&mut line).unwrap();
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.push((name.to_lowercase(), value.to_owned())),
            None => return (status, headers),
        }
    }
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The code of a refusal.
    pub fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }
}
