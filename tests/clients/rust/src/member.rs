//! A member of a group, as tests/clients/members/program.py says: told by options, ordered by lines.

use std::collections::BTreeSet;
use std::io::{self, BufRead};
use std::sync::mpsc::{channel, Receiver, TryRecvError};
use std::sync::Mutex;
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::KafkaResult;
use rdkafka::message::Message;
use rdkafka::{Offset, TopicPartitionList};
use serde_json::{json, Map, Value};

use crate::{say, Arguments, Failed, DEADLINE};

type Place = (String, i32);

/// The partitions held; each change of them is told.
#[derive(Default)]
struct Told(Mutex<BTreeSet<Place>>);

impl ClientContext for Told {}

impl ConsumerContext for Told {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Revoke(removed) = rebalance {
            let mut owned = self.0.lock().unwrap();
            let removed = places(removed);
            owned.retain(|place| !removed.contains(place));
            let event = if consumer.assignment_lost() { "lost" } else { "revoked" };
            say(json!({"event": event, "removed": removed, "owned": *owned}));
        }
    }

    fn post_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(added) = rebalance {
            let mut owned = self.0.lock().unwrap();
            let added = places(added);
            owned.extend(added.iter().cloned());
            say(json!({"event": "assigned", "added": added, "owned": *owned}));
        }
    }

    fn main_queue_min_poll_interval(&self) -> rdkafka::util::Timeout {
        Duration::from_millis(100).into()
    }
}

fn places(list: &TopicPartitionList) -> BTreeSet<Place> {
    list.elements().iter().map(|element| (element.topic().to_owned(), element.partition())).collect()
}

/// The options as the other commands' arguments are: by name, words and numbers.
pub fn options() -> Arguments {
    let mut found = Map::new();
    let mut words = std::env::args().skip(2);
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        found.insert(name.trim_start_matches("--").replace('-', "_"), Value::String(value));
    }
    Arguments::of(found)
}

fn open(given: &Arguments) -> Result<BaseConsumer<Told>, Failed> {
    let mut settings = given.settings();
    settings
        .set("group.id", given.text("group"))
        .set("enable.auto.commit", "false")
        .set("fetch.wait.max.ms", "100")
        .set("topic.metadata.refresh.interval.ms", "2000")
        .set("auto.offset.reset", given.text_or("reset", "earliest"));
    if !given.text("instance").is_empty() {
        settings.set("group.instance.id", given.text("instance"));
    }
    if given.text("protocol") == "consumer" {
        settings.set("group.protocol", "consumer");
    } else {
        let strategy = given.text_or("strategy", "range");
        settings
            .set("partition.assignment.strategy", if strategy == "cooperative" { "cooperative-sticky" } else { strategy })
            .set("session.timeout.ms", given.text_or("session_timeout_ms", "6000"))
            .set("heartbeat.interval.ms", given.text_or("heartbeat_ms", "500"));
    }
    Ok(settings.create_with_context(Told::default())?)
}

pub fn member(given: &Arguments) -> Result<(), Failed> {
    let consumer = open(given)?;
    consumer.subscribe(&given.text("topics").split(',').collect::<Vec<_>>())?;
    let orders = orders();
    loop {
        match orders.try_recv() {
            Ok(order) => match order.split_whitespace().collect::<Vec<_>>()[..] {
                ["commit"] => match commit(&consumer) {
                    Ok(offsets) => say(json!({"event": "committed", "offsets": offsets})),
                    Err(failure) => say(json!({"event": "error", "message": failure.to_string()})),
                },
                ["seek", topic, partition, offset] => {
                    consumer.seek(topic, partition.parse()?, Offset::Offset(offset.parse()?), DEADLINE)?;
                }
                _ => break,
            },
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {}
        }
        match consumer.poll(Duration::from_millis(50)) {
            None => {}
            Some(Ok(message)) => say(json!({
                "event": "record",
                "topic": message.topic(),
                "partition": message.partition(),
                "offset": message.offset(),
                "value": message.payload().map(String::from_utf8_lossy),
            })),
            Some(Err(failure)) => {
                say(json!({"event": "error", "message": failure.to_string()}));
                if let Some((_, fatal)) = consumer.client().fatal_error() {
                    return Err(fatal.into());
                }
            }
        }
    }
    Ok(())
}

/// Commits the positions after what was told; which those are.
fn commit(consumer: &BaseConsumer<Told>) -> KafkaResult<Vec<(String, i32, i64)>> {
    let (mut asked, mut offsets) = (TopicPartitionList::new(), Vec::new());
    for element in consumer.position()?.elements() {
        if let Offset::Offset(offset) = element.offset() {
            asked.add_partition_offset(element.topic(), element.partition(), element.offset())?;
            offsets.push((element.topic().to_owned(), element.partition(), offset));
        }
    }
    if !offsets.is_empty() {
        consumer.commit(&asked, CommitMode::Sync)?;
    }
    Ok(offsets)
}

fn orders() -> Receiver<String> {
    let (sender, orders) = channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    orders
}
