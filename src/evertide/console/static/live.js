// The state of the pipeline, kept up to date by the server's events, or by polling every 2 seconds.
//
// 1. A screen names the values that it needs; only those are requested, the expensive ones at most every 2 seconds. The
//    status is always requested: the head of the page shows it.
// 2. A value that cannot be read keeps its last state, with an error beside it (`world.errors`).
// 3. `world.connection` says how the page is connected: `live`, `polling` or `away`, since when, and when the server last
//    answered, so that the page can mark old values.
// 4. A hidden page sends no requests.

import { ask, Away, get, now_s } from "./api.js"
import { events } from "./stream.js"

const POLL_S = 2
const PAUSES_S = { transactions: 0, collections: 2, graph: 2 }
const CHECK_S = 10
const SILENCE_S = 45
const TRANSACTIONS_MAX = 600
const SAMPLES_MAX = 240

const REQUESTS = {
  status: () => get("/v1/status"),
  collections: () => get("/v1/collections"),
  graph: () => get("/v1/graph"),
  transactions: () => get("/v1/transactions", { limit: world.transactions.length ? 50 : 300 }),
}

export const world = {
  status: null,
  collections: null,
  graph: null,
  transactions: [],
  samples: [],
  errors: {},
  connection: { mode: "starting", since_s: now_s(), seen_s: 0, why: "" },
  now_s: now_s(),
}

let needs = []
let changed = () => {}
let requested_s = -Infinity
const last_s = {}
let isRequesting = false
let isWanted = true
let isStreaming = false

export function start(listener) {
  changed = listener
  follow()
  setInterval(tick, 1000)
  document.addEventListener("visibilitychange", () => !document.hidden && refresh())
  refresh()
}

export function need(names) {
  needs = names
  for (const name of names) delete last_s[name] // a screen that opens does not wait
  refresh()
}

// Unlike the wall clock, this one is never set or corrected.
function steady_s() {
  return performance.now() / 1000
}

function tick() {
  world.now_s = now_s()
  const due_s = isStreaming ? (isWanted ? 1 : CHECK_S) : POLL_S
  if (!document.hidden && steady_s() - requested_s >= due_s) refresh()
  changed()
}

export async function refresh() {
  isWanted = true
  if (isRequesting) return
  isRequesting = true
  isWanted = false
  requested_s = steady_s()
  const names = ["status", ...needs.filter((name) => requested_s - (last_s[name] ?? -Infinity) >= PAUSES_S[name])]
  for (const name of names) last_s[name] = requested_s
  const answers = await Promise.allSettled(names.map((name) => REQUESTS[name]()))
  isRequesting = false
  names.forEach((name, at) => take(name, answers[at]))
  connect(answers[0])
  world.now_s = now_s()
  changed()
}

function take(name, answer) {
  if (answer.status === "rejected") {
    world.errors[name] = answer.reason
    return
  }
  delete world.errors[name]
  if (name === "transactions") answer.value.transactions.forEach(takeTransaction)
  else world[name] = name === "collections" ? answer.value.collections : answer.value
  if (name === "collections") sample()
}

function takeTransaction(one) {
  const list = world.transactions
  const at = list.findIndex((each) => each.time >= one.time)
  if (at < 0) list.push(one)
  else if (list[at].time === one.time) list[at] = { ...list[at], ...one }
  else list.splice(at, 0, one)
  if (list.length > TRANSACTIONS_MAX) list.splice(0, list.length - TRANSACTIONS_MAX)
}

// The number of rows of each collection over time, since the page was opened.
function sample() {
  const rows = Object.fromEntries(world.collections.map((one) => [one.name, one.rows]))
  world.samples.push({ at_s: now_s(), rows })
  if (world.samples.length > SAMPLES_MAX) world.samples.shift()
}

function connect(answer) {
  const isAway = answer.status === "rejected" && answer.reason instanceof Away
  const mode = isAway ? "away" : isStreaming ? "live" : "polling"
  const before = world.connection
  if (mode !== before.mode) world.connection = { ...before, mode, since_s: now_s() }
  world.connection.why = isAway ? answer.reason.message : ""
  if (answer.status === "fulfilled") world.connection.seen_s = now_s()
}

async function follow() {
  for (let wait_s = 1; ; wait_s = Math.min(wait_s * 2, 15)) {
    try {
      if (!(await stream(() => (wait_s = 1)))) return // the server has no events: poll
    } catch {
      // The next request shows whether the server answers.
    }
    isStreaming = false
    refresh()
    await new Promise((done) => setTimeout(done, wait_s * 1000))
  }
}

async function stream(received) {
  const silence = new AbortController()
  const answer = await ask("/v1/events", { headers: { Accept: "text/event-stream" }, limit_ms: 0, signal: silence.signal })
  if (answer.status === 404 || answer.status === 405) return false
  if (!answer.ok) throw new Error(`events: ${answer.status}`)
  isStreaming = true
  refresh()
  let heard_s = steady_s()
  const watch = setInterval(() => steady_s() - heard_s > SILENCE_S && silence.abort(), 5000)
  try {
    for await (const event of events(answer.body, () => (heard_s = steady_s()))) {
      received()
      if (event.kind === "transaction") takeTransaction(event.value)
      isWanted = true
    }
  } finally {
    clearInterval(watch)
  }
  return true
}
