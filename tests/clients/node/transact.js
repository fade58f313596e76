// Transactions, and the records that consumers of committed data see.
'use strict'

const { recordOf } = require('./member')

// One transaction after another.
async function transact(kafka, createPartitioner, given, say) {
  const producer = kafka.producer({
    transactionalId: given.transactional_id,
    idempotent: true,
    maxInFlightRequests: 1,
    createPartitioner,
  })
  await producer.connect()
  for (const { records, offset, commit } of given.transactions) {
    const transaction = await producer.transaction()
    const messages = records.map(({ partition, value }) => ({ partition, value }))
    await transaction.send({ topic: given.topic, messages })
    if (given.source) {
      const partitions = [{ partition: 0, offset: String(offset) }]
      await transaction.sendOffsets({
        consumerGroupId: given.group,
        topics: [{ topic: given.source, partitions }],
      })
    }
    await (commit ? transaction.commit() : transaction.abort())
  }
  await producer.disconnect()
  say({ done: true })
}

// Reads as many records as are asked for, as the only member of a group.
async function consume(kafka, given, say) {
  const consumer = kafka.consumer({
    groupId: given.group,
    sessionTimeout: 10000,
    heartbeatInterval: 300,
    maxWaitTimeInMs: 200,
    readUncommitted: given.isolation !== 'read_committed',
  })
  const wanted = given.partitions.reduce((sum, range) => sum + range.count, 0)
  let seen = 0
  await consumer.connect()
  await consumer.subscribe({ topic: given.topic, fromBeginning: true })
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`read ${seen} of ${wanted} records`)), 45000)
    consumer
      .run({
        autoCommit: false,
        eachMessage: async ({ partition, message }) => {
          if (seen < wanted) say(recordOf(partition, message))
          seen += 1
          if (seen === wanted) resolve()
        },
      })
      .catch(reject)
  })
  await consumer.disconnect()
}

module.exports = { transact, consume }
