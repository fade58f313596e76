// Members of groups. kafkajs consumes in no other way: a consumer always has a group.
'use strict'

const recordOf = (partition, message) => ({
  event: 'record',
  partition,
  offset: Number(message.offset),
  timestamp_ms: Number(message.timestamp),
  key: message.key === null ? null : message.key.toString(),
  value: message.value === null ? null : message.value.toString(),
  headers: Object.entries(message.headers || {}).map(([name, value]) => [name, value.toString()]),
})

const join = (kafka, groupId, sessionTimeout, heartbeatInterval) =>
  kafka.consumer({ groupId, sessionTimeout, heartbeatInterval, rebalanceTimeout: 30000, maxWaitTimeInMs: 200 })

// A member as tests/clients/members/program.py says: told by options, ordered by lines.
async function member(open, given, say, orders) {
  if ((given.protocol || 'classic') !== 'classic' || given.strategy !== 'roundrobin' || given.instance) {
    throw new Error(`not offered: ${JSON.stringify(given)}`)
  }
  const session = Number(given.session_timeout_ms || 6000)
  const consumer = join(open(given), given.group, session, Number(given.heartbeat_ms || 500))
  const next = new Map()
  let owned = []
  const revoke = () => {
    if (owned.length > 0) {
      const removed = owned
      owned = []
      next.clear()
      say({ event: 'revoked', removed, owned })
    }
  }
  consumer.on(consumer.events.REBALANCING, revoke)
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    revoke()
    const assignment = Object.entries(payload.memberAssignment)
    owned = assignment.flatMap(([topic, partitions]) => partitions.map(partition => [topic, partition]))
    say({ event: 'assigned', added: owned, owned })
  })
  await consumer.connect()
  const topics = given.topics.startsWith('^') ? [new RegExp(given.topics)] : given.topics.split(',')
  await consumer.subscribe({ topics, fromBeginning: given.reset !== 'latest' })
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ topic, partition, message }) => {
      if (!owned.some(place => place[0] === topic && place[1] === partition)) return
      next.set(`${partition} ${topic}`, [topic, partition, Number(message.offset) + 1])
      const value = message.value === null ? null : message.value.toString()
      say({ event: 'record', topic, partition, offset: Number(message.offset), value })
    },
  })
  for (let order = await orders.next(); !order.done; order = await orders.next()) {
    const [word, topic, partition, offset] = order.value.split(' ')
    if (word === 'commit') await commit(consumer, [...next.values()], say)
    else if (word === 'seek') consumer.seek({ topic, partition: Number(partition), offset })
    else break
  }
  await consumer.disconnect()
}

async function commit(consumer, offsets, say) {
  try {
    const asked = offsets.map(([topic, partition, offset]) => ({ topic, partition, offset: String(offset) }))
    if (asked.length > 0) await consumer.commitOffsets(asked)
    say({ event: 'committed', offsets })
  } catch (failure) {
    say({ event: 'error', message: failure.message })
  }
}

// Reads the first range, then goes to `offset` of its partition and reads `count` records from there.
async function seek(kafka, given, say) {
  const consumer = join(kafka, given.group, 10000, 300)
  const [{ partition, count }] = given.partitions
  await consumer.connect()
  await consumer.subscribe({ topic: given.topic, fromBeginning: true })
  const { topic } = given
  let seen = 0
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`read ${seen} records`)), 45000)
    consumer
      .run({
        autoCommit: false,
        eachBatchAutoResolve: false,
        eachBatch: async ({ batch, isStale }) => {
          for (const message of batch.messages) {
            if (isStale() || seen === count + given.count) return // after a seek the rest of the batch is stale
            say(recordOf(partition, message))
            seen += 1
            if (seen === count) {
              say({ event: 'seek' })
              consumer.seek({ topic, partition, offset: String(given.offset) })
            } else if (seen === count + given.count) {
              resolve()
            }
          }
        },
      })
      .catch(reject)
  })
  await consumer.disconnect()
}

module.exports = { member, recordOf, seek }
