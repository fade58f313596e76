// The admin calls that kafkajs offers.
'use strict'

const { ConfigResourceTypes } = require('kafkajs')

const DONE = { done: true }
const entries = configs => Object.entries(configs || {}).map(([name, value]) => ({ name, value }))

const calls = {
  // Looks up each of `times` (-2: the beginning, -1: the end, else milliseconds).
  offsets: async (admin, { topic, partition, times }) => {
    const offsets = []
    for (const time of times) {
      if (time < 0) {
        const found = (await admin.fetchTopicOffsets(topic)).find(listed => listed.partition === partition)
        offsets.push(Number(time === -2 ? found.low : found.high))
      } else {
        const found = await admin.fetchTopicOffsetsByTimestamp(topic, time)
        offsets.push(Number(found.find(listed => listed.partition === partition).offset))
      }
    }
    return { offsets }
  },
  committed: async (admin, { group, topic }) => {
    const [{ partitions }] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
    const there = partitions.filter(({ offset }) => Number(offset) >= 0)
    return { offsets: Object.fromEntries(there.map(({ partition, offset }) => [partition, Number(offset)])) }
  },
  'create-topic': async (admin, { topic, count, configs }) => {
    const topics = [{ topic, numPartitions: count, configEntries: entries(configs) }]
    if (!(await admin.createTopics({ topics }))) throw new Error(`${topic} exists, kafkajs says`)
    return DONE
  },
  'describe-topic': async (admin, { topic }) => {
    const exists = (await admin.listTopics()).includes(topic)
    const described = exists ? (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions : []
    return { exists, partitions: described.length }
  },
  'create-partitions': async (admin, { topic, count }) => {
    await admin.createPartitions({ topicPartitions: [{ topic, count }] })
    return DONE
  },
  'delete-topic': async (admin, { topic }) => {
    await admin.deleteTopics({ topics: [topic] })
    return DONE
  },
  'describe-configs': async (admin, { topic }) => {
    const resources = [{ type: ConfigResourceTypes.TOPIC, name: topic }]
    const [found] = (await admin.describeConfigs({ resources, includeSynonyms: false })).resources
    return { configs: Object.fromEntries(found.configEntries.map(entry => [entry.configName, entry.configValue])) }
  },
  'alter-configs': async (admin, { topic, configs }) => {
    const resources = [{ type: ConfigResourceTypes.TOPIC, name: topic, configEntries: entries(configs) }]
    await admin.alterConfigs({ validateOnly: false, resources })
    return DONE
  },
  'delete-records': async (admin, { topic, offsets }) => {
    const partitions = Object.entries(offsets).map(([partition, offset]) => ({
      partition: Number(partition),
      offset: String(offset),
    }))
    await admin.fetchTopicOffsets(topic) // deleteTopicRecords wants the topic's metadata to be there
    await admin.deleteTopicRecords({ topic, partitions })
    return DONE
  },
  'list-groups': async admin => ({ groups: (await admin.listGroups()).groups.map(({ groupId }) => groupId) }),
  'describe-group': async (admin, { group }) => {
    const [found] = (await admin.describeGroups([group])).groups
    return { state: found.state, members: found.members.length }
  },
  'delete-group': async (admin, { group }) => {
    await admin.deleteGroups([group]).catch(failure => {
      throw failure.groups ? failure.groups[0].error : failure
    })
    return DONE
  },
  'describe-cluster': async admin => {
    const { brokers } = await admin.describeCluster()
    return { brokers: brokers.map(({ host, port }) => `${host}:${port}`) }
  },
}

// Per command a function that opens an admin client for one call.
module.exports = (open, say) =>
  Object.fromEntries(
    Object.entries(calls).map(([name, call]) => [
      name,
      async given => {
        const admin = open(given).admin()
        await admin.connect()
        try {
          say(await call(admin, given))
        } finally {
          await admin.disconnect()
        }
      },
    ])
  )
