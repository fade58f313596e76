//! Transactions: records, and the offsets of a group that take effect with them.

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};
use serde_json::{json, Value};

use crate::{say, Arguments, Failed, DEADLINE};

/// One transaction after another.
pub fn transact(arguments: &Arguments) -> Result<(), Failed> {
    let mut settings = arguments.settings();
    settings.set("transactional.id", arguments.text("transactional_id")).set("linger.ms", "5");
    let producer: BaseProducer = settings.create()?;
    producer.init_transactions(DEADLINE)?;
    for transaction in arguments.list("transactions") {
        carry_out(arguments, &producer, transaction)?;
    }
    say(json!({"done": true}));
    Ok(())
}

fn carry_out(arguments: &Arguments, producer: &BaseProducer, transaction: &Value) -> Result<(), Failed> {
    producer.begin_transaction()?;
    for given in transaction["records"].as_array().into_iter().flatten() {
        let record: BaseRecord<'_, str, str> = BaseRecord::to(arguments.text("topic"))
            .partition(given["partition"].as_i64().unwrap() as i32)
            .payload(given["value"].as_str().unwrap());
        producer.send(record).map_err(|(failure, _)| failure)?;
    }
    if !arguments.text("source").is_empty() {
        let consumer: BaseConsumer = arguments.settings().set("group.id", arguments.text("group")).create()?;
        let group = consumer.group_metadata().ok_or("the consumer has no group")?;
        let mut offsets = TopicPartitionList::new();
        let offset = Offset::Offset(transaction["offset"].as_i64().unwrap());
        offsets.add_partition_offset(arguments.text("source"), 0, offset)?;
        producer.send_offsets_to_transaction(&offsets, &group, DEADLINE)?;
    }
    if transaction["commit"].as_bool().unwrap() {
        producer.commit_transaction(DEADLINE)?;
    } else {
        producer.flush(DEADLINE)?;
        producer.abort_transaction(DEADLINE)?;
    }
    Ok(())
}
