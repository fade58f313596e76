//! Does over rust-rdkafka what tests/clients asks of every client.
//!
//! The command's name is the first argument, its arguments are one line of JSON on standard input, what it says are
//! lines of JSON on standard output. A program that fails says why on standard error and ends with status 1. The command
//! `member` is another: its arguments are options, its standard input are orders.

mod admin;
mod consume;
mod login;
mod member;
mod produce;
mod transact;

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::time::Duration;

use rdkafka::config::ClientConfig;
use serde_json::{json, Value};

pub type Failed = Box<dyn Error>;

/// How long a command may take that is not told when to end.
pub const DEADLINE: Duration = Duration::from_secs(45);

/// What every command of this client is given; each takes what it needs.
pub struct Arguments(Value);

impl Arguments {
    pub fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or("")
    }

    pub fn of(named: serde_json::Map<String, Value>) -> Self {
        Self(Value::Object(named))
    }

    pub fn text_or<'a>(&'a self, name: &str, otherwise: &'a str) -> &'a str {
        self.0[name].as_str().unwrap_or(otherwise)
    }

    /// Arguments within these.
    pub fn part(&self, name: &str) -> Self {
        Self(self.0[name].clone())
    }

    pub fn number(&self, name: &str) -> i64 {
        self.0[name].as_i64().unwrap_or(0)
    }

    pub fn list(&self, name: &str) -> &[Value] {
        self.0[name].as_array().map_or(&[], Vec::as_slice)
    }

    pub fn flag(&self, name: &str) -> bool {
        self.0[name].as_bool().unwrap_or(false)
    }

    /// The configs of a topic.
    pub fn configs(&self) -> Vec<(&str, &str)> {
        let configs = self.0["configs"].as_object();
        configs.into_iter().flatten().map(|(name, value)| (name.as_str(), value.as_str().unwrap_or(""))).collect()
    }

    /// Per partition an offset.
    pub fn offsets(&self) -> Vec<(i32, i64)> {
        let offsets = self.0["offsets"].as_object();
        let pairs = offsets.into_iter().flatten();
        pairs.map(|(partition, offset)| (partition.parse().unwrap(), offset.as_i64().unwrap())).collect()
    }

    /// The settings that all of this program's clients share.
    pub fn settings(&self) -> ClientConfig {
        let mut settings = ClientConfig::new();
        settings.set("bootstrap.servers", self.text("servers")).set("client.id", self.text("client_id"));
        settings
    }
}

/// Writes one line.
pub fn say(what: Value) {
    let mut output = io::stdout().lock();
    writeln!(output, "{what}").and_then(|()| output.flush()).expect("the tests read what is said");
}

fn run() -> Result<(), Failed> {
    let command = std::env::args().nth(1).unwrap_or_default();
    if command == "member" {
        return member::member(&member::options());
    }
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let arguments = Arguments(serde_json::from_str(&line)?);
    match command.as_str() {
        "version" => {
            let (_, native) = rdkafka::util::get_rdkafka_version();
            say(json!({"version": format!("{} (librdkafka {native})", env!("RDKAFKA_VERSION"))}));
            Ok(())
        }
        "login" => login::login(&arguments),
        "produce" => produce::produce(&arguments),
        "transact" => transact::transact(&arguments),
        "consume" => consume::consume(&arguments),
        "seek" => consume::seek(&arguments),
        "offsets" => consume::offsets(&arguments),
        "commit" => consume::commit(&arguments),
        "committed" => consume::committed(&arguments),
        _ => admin::run(&command, &arguments),
    }
}

fn main() {
    if let Err(failure) = run() {
        eprintln!("{failure}");
        std::process::exit(1);
    }
}
