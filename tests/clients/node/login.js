// Logging in by each mechanism, with and without TLS.
'use strict'

const fs = require('node:fs')
const { recordOf } = require('./member')

// What a client's constructor takes of `security`.
function securityOf({ protocol, mechanism, user, password, token, authority, certificate, key }) {
  const settings = {}
  if (protocol.endsWith('SSL')) {
    settings.ssl = { ca: [fs.readFileSync(authority)] }
    if (certificate) Object.assign(settings.ssl, { cert: fs.readFileSync(certificate), key: fs.readFileSync(key) })
  }
  if (mechanism === 'OAUTHBEARER') {
    settings.sasl = { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: token }) }
  } else if (mechanism) {
    settings.sasl = { mechanism: mechanism.toLowerCase(), username: user, password }
  }
  settings.reauthenticationThreshold = 1000 // its 10 s are longer than the sessions of these tests
  return settings
}

// Produces `count` records, waiting `every_ms` after each, and reads them as the only member of a group.
async function login(kafka, createPartitioner, given, say) {
  const producer = kafka.producer({ createPartitioner })
  await producer.connect()
  for (let number = 0; number < given.count; number++) {
    await producer.send({ topic: given.topic, acks: -1, messages: [{ value: String(number) }] })
    await new Promise(resolve => setTimeout(resolve, given.every_ms))
  }
  await producer.disconnect()
  const consumer = kafka.consumer({ groupId: given.topic, maxWaitTimeInMs: 200 })
  await consumer.connect()
  await consumer.subscribe({ topic: given.topic, fromBeginning: true })
  let seen = 0
  await new Promise(resolve =>
    consumer.run({
      eachMessage: async ({ partition, message }) => {
        say(recordOf(partition, message))
        if (++seen === given.count) resolve()
      },
    })
  )
}

module.exports = { login, securityOf }
