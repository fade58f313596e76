//! Consuming by assignment, looking offsets up, and commits of consumers without a group's membership.

use std::time::Instant;

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::{Offset, TopicPartitionList};
use serde_json::{json, Map, Value};

use crate::{say, Arguments, Failed, DEADLINE};

fn open(arguments: &Arguments) -> Result<BaseConsumer, Failed> {
    let group = if arguments.text("group").is_empty() { "unused" } else { arguments.text("group") };
    let mut settings = arguments.settings();
    settings.set("isolation.level", arguments.text_or("isolation", "read_committed"));
    settings.set("group.id", group).set("enable.auto.commit", "false").set("fetch.wait.max.ms", "200");
    Ok(settings.create()?)
}

fn start_of(from: i64) -> Offset {
    match from {
        -2 => Offset::Beginning,
        -1 => Offset::End,
        offset => Offset::Offset(offset),
    }
}

/// Takes the ranges asked for; the number of records that they hold.
fn assign(consumer: &BaseConsumer, arguments: &Arguments) -> Result<i64, Failed> {
    let (mut asked, mut wanted) = (TopicPartitionList::new(), 0);
    for range in arguments.list("partitions") {
        let partition = range["partition"].as_i64().unwrap() as i32;
        asked.add_partition_offset(arguments.text("topic"), partition, start_of(range["from"].as_i64().unwrap()))?;
        wanted += range["count"].as_i64().unwrap();
    }
    consumer.assign(&asked)?;
    Ok(wanted)
}

pub fn read<C: ConsumerContext>(consumer: &BaseConsumer<C>, wanted: i64) -> Result<(), Failed> {
    let (until, mut seen) = (Instant::now() + DEADLINE, 0);
    while seen < wanted {
        if Instant::now() > until {
            return Err(format!("read {seen} of {wanted} records").into());
        }
        if let Some(message) = consumer.poll(DEADLINE) {
            say(record_of(&message?));
            seen += 1;
        }
    }
    Ok(())
}

pub fn record_of(message: &BorrowedMessage<'_>) -> Value {
    let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
    json!({
        "event": "record",
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp_ms": message.timestamp().to_millis(),
        "key": message.key().map(String::from_utf8_lossy),
        "value": message.payload().map(String::from_utf8_lossy),
        "headers": headers.map(|header| json!([header.key, header.value.map(String::from_utf8_lossy)])).collect::<Value>(),
    })
}

pub fn consume(arguments: &Arguments) -> Result<(), Failed> {
    let consumer = open(arguments)?;
    let wanted = assign(&consumer, arguments)?;
    read(&consumer, wanted)
}

/// Reads the whole range, then goes to `offset` of its first partition and reads `count` records from there.
pub fn seek(arguments: &Arguments) -> Result<(), Failed> {
    let consumer = open(arguments)?;
    let wanted = assign(&consumer, arguments)?;
    read(&consumer, wanted)?;
    say(json!({"event": "seek"}));
    let partition = arguments.list("partitions")[0]["partition"].as_i64().unwrap() as i32;
    consumer.seek(arguments.text("topic"), partition, Offset::Offset(arguments.number("offset")), DEADLINE)?;
    read(&consumer, arguments.number("count"))
}

/// Looks up each of `times` (-2: the beginning, -1: the end, else milliseconds).
pub fn offsets(arguments: &Arguments) -> Result<(), Failed> {
    let consumer = open(arguments)?;
    let (topic, partition) = (arguments.text("topic"), arguments.number("partition") as i32);
    let mut found = Vec::new();
    for time in arguments.list("times").iter().filter_map(Value::as_i64) {
        let (first, end) = consumer.fetch_watermarks(topic, partition, DEADLINE)?;
        found.push(match time {
            -2 => first,
            -1 => end,
            _ => {
                let mut asked = TopicPartitionList::new();
                asked.add_partition_offset(topic, partition, Offset::Offset(time))?;
                let answer = consumer.offsets_for_times(asked, DEADLINE)?;
                match answer.elements()[0].offset() {
                    Offset::Offset(offset) => offset,
                    _ => -1,
                }
            }
        });
    }
    say(json!({"offsets": found}));
    Ok(())
}

pub fn commit(arguments: &Arguments) -> Result<(), Failed> {
    let mut asked = TopicPartitionList::new();
    for (partition, offset) in arguments.offsets() {
        asked.add_partition_offset(arguments.text("topic"), partition, Offset::Offset(offset))?;
    }
    open(arguments)?.commit(&asked, CommitMode::Sync)?;
    say(json!({"done": true}));
    Ok(())
}

pub fn committed(arguments: &Arguments) -> Result<(), Failed> {
    let mut asked = TopicPartitionList::new();
    for range in arguments.list("partitions") {
        asked.add_partition(arguments.text("topic"), range["partition"].as_i64().unwrap() as i32);
    }
    let answer = open(arguments)?.committed_offsets(asked, DEADLINE)?;
    let mut found = Map::new();
    for element in answer.elements() {
        element.error()?;
        if let Offset::Offset(offset) = element.offset() {
            found.insert(element.partition().to_string(), json!(offset));
        }
    }
    say(json!({"offsets": found}));
    Ok(())
}
