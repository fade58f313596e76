//! Producing: every compression, idempotent or not, with any acks.

use std::sync::Mutex;

use rdkafka::client::ClientContext;
use rdkafka::message::{Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};
use serde_json::json;

use crate::{say, Arguments, Failed, DEADLINE};

/// The offset of each record, as it is acknowledged.
#[derive(Default)]
struct Deliveries {
    offsets: Mutex<Vec<i64>>,
    failures: Mutex<Vec<String>>,
}

impl ClientContext for Deliveries {}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = Box<usize>;

    fn delivery(&self, result: &DeliveryResult<'_>, index: Box<usize>) {
        match result {
            Ok(message) => self.offsets.lock().unwrap()[*index] = message.offset(),
            Err((failure, _)) => self.failures.lock().unwrap().push(failure.to_string()),
        }
    }
}

pub fn produce(arguments: &Arguments) -> Result<(), Failed> {
    let records = arguments.list("records");
    let mut settings = arguments.settings();
    settings
        .set("compression.type", arguments.text("compression"))
        .set("acks", arguments.text("acks"))
        .set("enable.idempotence", arguments.flag("idempotent").to_string())
        .set("linger.ms", "5");
    let deliveries = Deliveries { offsets: Mutex::new(vec![-1; records.len()]), ..Deliveries::default() };
    let producer: BaseProducer<Deliveries> = settings.create_with_context(deliveries)?;
    for (index, given) in records.iter().enumerate() {
        let mut headers = OwnedHeaders::new();
        for header in given["headers"].as_array().into_iter().flatten() {
            headers = headers.insert(Header { key: header[0].as_str().unwrap(), value: header[1].as_str() });
        }
        let mut record: BaseRecord<'_, str, str, Box<usize>> =
            BaseRecord::with_opaque_to(arguments.text("topic"), Box::new(index))
                .partition(given["partition"].as_i64().unwrap() as i32)
                .timestamp(given["timestamp_ms"].as_i64().unwrap())
                .headers(headers);
        if let Some(key) = given["key"].as_str() {
            record = record.key(key);
        }
        if let Some(value) = given["value"].as_str() {
            record = record.payload(value);
        }
        producer.send(record).map_err(|(failure, _)| failure)?;
    }
    producer.flush(DEADLINE)?;
    let deliveries = producer.context();
    if let Some(failure) = deliveries.failures.lock().unwrap().first() {
        return Err(failure.clone().into());
    }
    say(json!({"offsets": *deliveries.offsets.lock().unwrap()}));
    Ok(())
}
