//! The admin calls that the crate offers.

use futures_executor::block_on;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication, TopicResult,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{Offset, TopicPartitionList};
use serde_json::{json, Map, Value};

use crate::{say, Arguments, Failed, DEADLINE};

pub fn run(command: &str, arguments: &Arguments) -> Result<(), Failed> {
    let admin: AdminClient<DefaultClientContext> = arguments.settings().create()?;
    let options = AdminOptions::new().request_timeout(Some(DEADLINE)).operation_timeout(Some(DEADLINE));
    let topic = arguments.text("topic");
    let count = arguments.number("count") as i32;
    let answer = match command {
        "create-topic" => {
            let mut asked = NewTopic::new(topic, count, TopicReplication::Fixed(1));
            for (name, value) in arguments.configs() {
                asked = asked.set(name, value);
            }
            checked(block_on(admin.create_topics([&asked], &options))?)?
        }
        "create-partitions" => {
            let asked = NewPartitions::new(topic, count as usize);
            checked(block_on(admin.create_partitions([&asked], &options))?)?
        }
        "delete-topic" => checked(block_on(admin.delete_topics(&[topic], &options))?)?,
        "describe-configs" => {
            let mut found = Map::new();
            for resource in block_on(admin.describe_configs([&ResourceSpecifier::Topic(topic)], &options))? {
                for entry in resource?.entries {
                    found.insert(entry.name, json!(entry.value));
                }
            }
            json!({"configs": found})
        }
        "alter-configs" => {
            let mut asked = AlterConfig::new(ResourceSpecifier::Topic(topic));
            for (name, value) in arguments.configs() {
                asked = asked.set(name, value);
            }
            for answer in block_on(admin.alter_configs([&asked], &options))? {
                answer.map_err(|(_, code)| code)?;
            }
            json!({"done": true})
        }
        "delete-records" => {
            let mut before = TopicPartitionList::new();
            for (partition, offset) in arguments.offsets() {
                before.add_partition_offset(topic, partition, Offset::Offset(offset))?;
            }
            for element in block_on(admin.delete_records(&before, &options))?.elements() {
                element.error()?;
            }
            json!({"done": true})
        }
        "delete-group" => {
            for answer in block_on(admin.delete_groups(&[arguments.text("group")], &options))? {
                answer.map_err(|(_, code)| code)?;
            }
            json!({"done": true})
        }
        _ => metadata(command, arguments)?,
    };
    say(answer);
    Ok(())
}

fn checked(answers: Vec<TopicResult>) -> Result<Value, Failed> {
    for answer in answers {
        answer.map_err(|(_, code)| code)?;
    }
    Ok(json!({"done": true}))
}

/// What the crate offers on every client, not on the admin client.
fn metadata(command: &str, arguments: &Arguments) -> Result<Value, Failed> {
    let client: BaseConsumer = arguments.settings().create()?;
    let topic = arguments.text("topic");
    Ok(match command {
        "describe-topic" => {
            let known = client.fetch_metadata(None, DEADLINE)?;
            let found = known.topics().iter().find(|known| known.name() == topic);
            json!({"exists": found.is_some(), "partitions": found.map_or(0, |found| found.partitions().len())})
        }
        "describe-cluster" => {
            let known = client.fetch_metadata(None, DEADLINE)?;
            let brokers = known.brokers().iter();
            json!({"brokers": brokers.map(|broker| format!("{}:{}", broker.host(), broker.port())).collect::<Vec<_>>()})
        }
        "list-groups" => {
            let known = client.fetch_group_list(None, DEADLINE)?;
            json!({"groups": known.groups().iter().map(|group| group.name()).collect::<Vec<_>>()})
        }
        "describe-group" => {
            let known = client.fetch_group_list(Some(arguments.text("group")), DEADLINE)?;
            let group = known.groups().first().ok_or("the group is not known")?;
            json!({"state": group.state(), "members": group.members().len()})
        }
        _ => return Err(format!("no command {command:?}").into()),
    })
}
