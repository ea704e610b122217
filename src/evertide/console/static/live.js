// The state of the pipeline, kept up to date by the server's events, or by polling every 2 seconds.
//
// 1. A screen names the values that it needs; only those are requested, the expensive ones at most every 2 seconds. The
//    status is always requested: the head of the page shows it.
// 2. A value that cannot be read keeps its last state, with an error beside it (`model.errors`).
// 3. `model.connection` says how the page is connected: `live`, `polling` or `away`, since when, and when the server last
//    answered, so that the page can mark old values.
// 4. A hidden page sends no requests.

import { ask, get, now_s, ServerUnavailable } from "./api.js"
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
  transactions: () => get("/v1/transactions", { limit: model.transactions.length ? 50 : 300 }),
}

export const model = {
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
let isRefreshDue = true
let isStreaming = false

export function start(listener) {
  changed = listener
  follow()
  setInterval(tick, 1000)
  document.addEventListener("visibilitychange", () => !document.hidden && refresh())
  refresh()
}

export function setNeeds(names) {
  needs = names
  for (const name of names) delete last_s[name] // a screen that opens does not wait
  refresh()
}

// Unlike the wall clock, this one is never set or corrected.
function steady_s() {
  return performance.now() / 1000
}

function tick() {
  model.now_s = now_s()
  const due_s = isStreaming ? (isRefreshDue ? 1 : CHECK_S) : POLL_S
  if (!document.hidden && steady_s() - requested_s >= due_s) refresh()
  changed()
}

export async function refresh() {
  isRefreshDue = true
  if (isRequesting) return
  isRequesting = true
  isRefreshDue = false
  requested_s = steady_s()
  const names = ["status", ...needs.filter((name) => requested_s - (last_s[name] ?? -Infinity) >= PAUSES_S[name])]
  for (const name of names) last_s[name] = requested_s
  const answers = await Promise.allSettled(names.map((name) => REQUESTS[name]()))
  isRequesting = false
  names.forEach((name, at) => storeAnswer(name, answers[at]))
  updateConnection(answers[0])
  model.now_s = now_s()
  changed()
}

function storeAnswer(name, answer) {
  if (answer.status === "rejected") {
    model.errors[name] = answer.reason
    return
  }
  delete model.errors[name]
  if (name === "transactions") answer.value.transactions.forEach(mergeTransaction)
  else model[name] = name === "collections" ? answer.value.collections : answer.value
  if (name === "collections") addSample()
}

function mergeTransaction(one) {
  const list = model.transactions
  const at = list.findIndex((each) => each.time >= one.time)
  if (at < 0) list.push(one)
  else if (list[at].time === one.time) list[at] = { ...list[at], ...one }
  else list.splice(at, 0, one)
  if (list.length > TRANSACTIONS_MAX) list.splice(0, list.length - TRANSACTIONS_MAX)
}

// The number of rows of each collection over time, since the page was opened.
function addSample() {
  const rows = Object.fromEntries(model.collections.map((one) => [one.name, one.rows]))
  model.samples.push({ at_s: now_s(), rows })
  if (model.samples.length > SAMPLES_MAX) model.samples.shift()
}

function updateConnection(answer) {
  const isAway = answer.status === "rejected" && answer.reason instanceof ServerUnavailable
  const mode = isAway ? "away" : isStreaming ? "live" : "polling"
  const before = model.connection
  if (mode !== before.mode) model.connection = { ...before, mode, since_s: now_s() }
  model.connection.why = isAway ? answer.reason.message : ""
  if (answer.status === "fulfilled") model.connection.seen_s = now_s()
}

async function follow() {
  for (let wait_s = 1; ; wait_s = Math.min(wait_s * 2, 15)) {
    try {
      if (!(await readEvents(() => (wait_s = 1)))) return // the server has no events: poll
    } catch {
      // The next request shows whether the server answers.
    }
    isStreaming = false
    refresh()
    await new Promise((done) => setTimeout(done, wait_s * 1000))
  }
}

async function readEvents(received) {
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
      if (event.kind === "transaction") mergeTransaction(event.value)
      isRefreshDue = true
    }
  } finally {
    clearInterval(watch)
  }
  return true
}
