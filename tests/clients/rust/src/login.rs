//! Logging in by each mechanism, with and without TLS.

use std::error::Error;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset, TopicPartitionList};

use crate::consume::read;
use crate::{Arguments, Failed, DEADLINE};

/// Hands out the token, and keeps the first reason why a login failed.
struct Proof {
    token: String,
    user: String,
    refused: Mutex<Option<String>>,
}

impl ClientContext for Proof {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn error(&self, error: KafkaError, reason: &str) {
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::Authentication) {
            self.refused.lock().unwrap().get_or_insert(format!("{error}: {reason}"));
        }
    }

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        let lifetime = SystemTime::now().duration_since(UNIX_EPOCH)? + Duration::from_secs(300);
        Ok(OAuthToken {
            token: self.token.clone(),
            principal_name: self.user.clone(),
            lifetime_ms: lifetime.as_millis() as i64,
        })
    }
}

impl ConsumerContext for Proof {}

impl ProducerContext for Proof {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, _: ()) {}
}

/// Produces `count` records, waiting `every_ms` after each, and reads them.
pub fn login(arguments: &Arguments) -> Result<(), Failed> {
    let mut settings = arguments.settings();
    let security = arguments.part("security");
    for (setting, name) in [
        ("security.protocol", "protocol"),
        ("sasl.mechanism", "mechanism"),
        ("sasl.username", "user"),
        ("sasl.password", "password"),
        ("ssl.ca.location", "authority"),
        ("ssl.certificate.location", "certificate"),
        ("ssl.key.location", "key"),
    ] {
        if !security.text(name).is_empty() {
            settings.set(setting, security.text(name));
        }
    }
    settings.set("reconnect.backoff.max.ms", "500");
    let proof = || Proof {
        token: security.text("token").to_string(),
        user: security.text("user").to_string(),
        refused: Mutex::default(),
    };
    let producer: BaseProducer<Proof> = settings.create_with_context(proof())?;
    for number in 0..arguments.number("count") {
        let value = number.to_string();
        let record: BaseRecord<'_, (), str> = BaseRecord::to(arguments.text("topic")).payload(&value);
        producer.send(record).map_err(|(failure, _)| failure)?;
        flush(&producer)?;
        thread::sleep(Duration::from_millis(arguments.number("every_ms") as u64));
    }
    settings.set("group.id", arguments.text("topic"));
    let consumer: BaseConsumer<Proof> = settings.create_with_context(proof())?;
    let mut asked = TopicPartitionList::new();
    asked.add_partition_offset(arguments.text("topic"), 0, Offset::Beginning)?;
    consumer.assign(&asked)?;
    read(&consumer, arguments.number("count"))
}

/// Fails as soon as a login does: librdkafka tries again for as long as its record may take.
fn flush(producer: &BaseProducer<Proof>) -> Result<(), Failed> {
    for _ in 0..DEADLINE.as_millis() / 100 {
        if producer.flush(Duration::from_millis(100)).is_ok() {
            return Ok(());
        }
        if let Some(refused) = producer.context().refused.lock().unwrap().clone() {
            return Err(refused.into());
        }
    }
    Err("the record was not delivered in time".into())
}
