// Does over kafkajs what tests/clients asks of every client.
//
// The command's name is the first argument, its arguments are one line of JSON on standard input, what it says are
// lines of JSON on standard output. A program that fails says why on standard error and ends with status 1. The command
// `member` is another: its arguments are options, its standard input are orders.
'use strict'

const readline = require('node:readline')
const kafkajs = require('kafkajs')
const Snappy = require('kafkajs-snappy')
const LZ4 = require('@2l/kafkajs-lz4')
const zstd = require('@bokuweb/zstd-wasm')
const admin = require('./admin')
const { login, securityOf } = require('./login')
const { member, seek } = require('./member')
const { consume, transact } = require('./transact')

const { CompressionTypes, CompressionCodecs } = kafkajs
// kafkajs brings gzip; the other codecs are for its user to plug in.
CompressionCodecs[CompressionTypes.Snappy] = Snappy
CompressionCodecs[CompressionTypes.LZ4] = new LZ4().codec
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => Buffer.from(zstd.compress(encoder.buffer)),
  decompress: async buffer => Buffer.from(zstd.decompress(buffer)),
})

const ACKS = { 0: 0, 1: 1, all: -1 }
const COMPRESSIONS = { none: 0, gzip: 1, snappy: 2, lz4: 3, zstd: 4 }

const say = what => process.stdout.write(JSON.stringify(what) + '\n')

const open = given =>
  new kafkajs.Kafka({
    brokers: given.servers.split(','),
    clientId: given.client_id || 'kafkajs',
    logLevel: kafkajs.logLevel.WARN,
    logCreator: () => entry => process.stderr.write(`${entry.log.message} ${entry.log.error || ''}\n`),
    retry: { initialRetryTime: 100, retries: 8 },
    ...(given.security ? securityOf(given.security) : {}),
  })

async function produce(given) {
  const producer = open(given).producer({
    idempotent: given.idempotent,
    maxInFlightRequests: given.idempotent ? 1 : null,
    createPartitioner: kafkajs.Partitioners.DefaultPartitioner,
  })
  await producer.connect()
  const messages = given.records.map(record => ({
    partition: record.partition,
    key: record.key,
    value: record.value,
    timestamp: String(record.timestamp_ms),
    headers: Object.fromEntries(record.headers),
  }))
  const [acks, compression] = [ACKS[given.acks], COMPRESSIONS[given.compression]]
  const answers = await producer.send({ topic: given.topic, acks, compression, messages })
  await producer.disconnect()
  // kafkajs sends one batch per partition and tells its first offset.
  const next = new Map((answers || []).map(answer => [answer.partition, Number(answer.baseOffset)]))
  const offsets = messages.map(({ partition }) => {
    const offset = next.get(partition)
    next.set(partition, offset + 1)
    return offset === undefined ? -1 : offset
  })
  say({ offsets })
}

// `--some-name value` as { some_name: 'value' }
const options = words =>
  Object.fromEntries(
    words.flatMap((word, i) => (i % 2 ? [] : [[word.slice(2).replaceAll('-', '_'), words[i + 1]]]))
  )

async function main() {
  const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]()
  await zstd.init()
  if (process.argv[2] === 'member') return member(open, options(process.argv.slice(3)), say, lines)
  const given = JSON.parse((await lines.next()).value)
  const commands = {
    version: async () => say({ version: require('kafkajs/package.json').version }),
    login: () => login(open(given), kafkajs.Partitioners.DefaultPartitioner, given, say),
    produce,
    consume: () => consume(open(given), given, say),
    transact: () => transact(open(given), kafkajs.Partitioners.DefaultPartitioner, given, say),
    seek: () => seek(open(given), given, say),
    ...admin(open, say),
  }
  return commands[process.argv[2]](given)
}

main().then(
  () => process.exit(0),
  failure => {
    process.stderr.write(`${failure.stack}\n`)
    process.exit(1)
  }
)
