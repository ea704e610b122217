// The state of the pipeline at a glance.

import { post } from "../api.js"
import { plot } from "../charts.js"
import { h } from "../dom.js"
import { ago, brief, bytes, clock, count, moment, plural, seconds } from "../format.js"
import { refresh } from "../live.js"
import { badge, button, card, empty, errorBox, lag, link, loadingOrError, pathOf, problem, table, tile } from "../parts.js"

const WINDOW_S = 120
const RATE_S = 10
const BARS_MAX = 160
const SPAN_S = 300

export default {
  title: "Overview",
  needs: ["collections", "transactions"],
  open: (_, redraw) => {
    const control = { isBusy: false, error: null, redraw }
    return { view: (model) => view(model, control) }
  },
}

function view(model, control) {
  const { status } = model
  if (!status) return loadingOrError(model.errors.status, "the status")
  return [
    health(model, control),
    h("dl", { class: "tiles" }, tiles(model)),
    h("div", { class: "columns" }, throughput(model), timeline(model)),
    h("div", { class: "columns" }, collections(model), h("div", { class: "stack" }, sources(status), sinks(status), replicas(status))),
  ]
}

function health({ status, now_s: now }, control) {
  const problems = [...status.problems.map((one) => [one, ""]), ...status.sources.flatMap((source) => source.problems.map((one) => [one, `source ${source.name}`]))]
  const seen = new Set()
  const isNew = ([one]) => !seen.has(one.why) && seen.add(one.why)
  const failed = status.collections.filter((one) => one.why)
  return card("", { class: `health ${status.state}`, label: "Health" },
    h("div", { class: "health-line" }, badge(status.state), h("p", null, h("strong", null, sentence(status)), ` since ${moment(status.since_s)}`, h("span", { class: "quiet" }, ` · ${seconds(now - status.since_s)}`)), pausing(status, control)),
    control.error && errorBox(control.error, "the new state"),
    status.why && !problems.some(([one]) => one.why === status.why) && h("p", { class: "why" }, status.why),
    status.remedy && !problems.length && h("p", { class: "remedy" }, h("span", null, "What to do"), status.remedy),
    problems.filter(isNew).map(([one, where]) => problem(one, where)),
    failed.map((one) => problem({ state: one.state, why: one.why, remedy: one.state === "failed" ? "The last good content stays readable. The view is recomputed when its tables change." : "" }, `view ${one.name}`)),
  )
}

function pausing({ state }, control) {
  const go = (path, question) => async () => {
    if (question && !confirm(question)) return
    control.isBusy = true
    control.redraw()
    try {
      await post(path)
      control.error = null
    } catch (error) {
      control.error = error
    }
    control.isBusy = false
    refresh()
  }
  if (state === "paused") return button("Resume", go("/v1/resume"), { class: "primary", disabled: control.isBusy })
  return state === "running" && button("Pause", go("/v1/pause", "Pause the pipeline? It starts no new transactions until it is resumed."), { disabled: control.isBusy })
}

function sentence({ state, collections }) {
  const hydrating = collections.filter((one) => one.state === "hydrating")
  if (state === "running" && hydrating.length) return `Running; hydrating ${plural(hydrating.length, "view")}`
  return { running: "Everything is up to date and running", paused: "Paused: the pipeline starts no new transactions", stopped: "Stopped: no process runs the pipeline", stalled: "Stalled: the pipeline cannot finish a transaction", reconnecting: "Reconnecting to a source", replaying: "Replaying transactions after a restart" }[state] ?? `The pipeline is ${state}`
}

function tiles({ status, transactions, now_s: now }) {
  const lately = transactions.filter((one) => one.at_s > now - RATE_S)
  const rows = lately.reduce((sum, one) => sum + (one.rows_in ?? 0), 0)
  const took = transactions.slice(-20).map((one) => one.took_ms).filter((one) => one != null).sort((a, b) => a - b)
  const stored = status.collections.reduce((sum, one) => sum + one.bytes, 0)
  const lags = status.sources.map((one) => one.lag?.seconds).filter((one) => one != null)
  const newest = status.checkpoints[0]
  const [tables, views] = ["table", "view"].map((kind) => status.collections.filter((one) => one.kind === kind).length)
  return [
    tile("Last transaction", count(status.time), status.bound > status.time ? `${plural(status.bound - status.time, "transaction is", "transactions are")} stored and not finished yet` : transactions.length ? ago(transactions.at(-1).at_s, now) : ""),
    tile("Rows a second", brief(rows / RATE_S), `in ${plural(lately.length, "transaction")} of the last ${RATE_S} s`),
    tile("A transaction takes", took.length ? seconds(took[Math.floor(took.length / 2)] / 1000) : "–", took.length ? `the slowest of ${took.length}: ${seconds(took.at(-1) / 1000)}` : ""),
    tile("Lag", lags.length ? seconds(Math.max(...lags)) : "–", lags.length ? "of the source furthest behind" : "no source reports it"),
    tile("Stored", bytes(stored), `${plural(tables, "table")}, ${plural(views, "view")}`),
    tile("Checkpoint", newest ? count(newest.number) : "none", newest ? `at time ${count(newest.time)}` : "a running pipeline makes them"),
  ]
}

function throughput({ transactions, errors, now_s: now }) {
  const points = perSecond(transactions, now)
  return card("Throughput", { class: "wide", actions: h("span", { class: "quiet" }, `rows a second, last ${WINDOW_S / 60} minutes`) },
    errors.transactions && !transactions.length
      ? errorBox(errors.transactions, "the last transactions")
      : points.length > 1
        ? plot({ name: "throughput", label: "Rows a second", points, kind: "area", formatX: clock })
        : empty("No transaction yet.", "The chart appears when rows arrive."))
}

// Rows a second, in steps of 2 seconds; a transaction counts when it was committed.
function perSecond(transactions, now) {
  const step = 2
  const last = Math.floor(now / step) - 1
  const first = Math.max(last - WINDOW_S / step, Math.floor((transactions[0]?.at_s ?? now) / step))
  const sums = new Map()
  for (const one of transactions) {
    const at = Math.floor(one.at_s / step)
    sums.set(at, (sums.get(at) ?? 0) + (one.rows_in ?? 0))
  }
  const points = []
  for (let at = first; at <= last; at += 1) {
    const y = (sums.get(at) ?? 0) / step
    points.push({ x: at * step, y, words: `${clock(at * step)}: ${brief(y)} rows a second` })
  }
  return points
}

function timeline({ transactions, errors }) {
  const shown = transactions.slice(-BARS_MAX).filter((one) => one.at_s > transactions.at(-1).at_s - SPAN_S)
  const points = shown.map((one) => ({ x: one.at_s, y: (one.took_ms ?? 0) / 1000, words: words(one) }))
  return card("Transactions", { class: "wide", actions: h("span", { class: "quiet" }, "each when it was committed, and how long it took") },
    errors.transactions && !transactions.length
      ? errorBox(errors.transactions, "the last transactions")
      : points.length
        ? plot({ name: "timeline", label: "How long each transaction took", points, kind: "bars", formatX: clock, formatY: (value) => `${Number(value.toFixed(3))} s` })
        : empty("No transaction yet."))
}

function words(one) {
  const parts = [
    `transaction ${count(one.time)}`,
    clock(one.at_s),
    one.rows_in != null && `${count(one.rows_in)} rows in`,
    one.rows_out != null && `${count(one.rows_out)} changes out`,
    one.took_ms != null && seconds(one.took_ms / 1000),
    one.bytes ? bytes(one.bytes) : null,
  ]
  return parts.filter(Boolean).join(" · ")
}

function collections({ status, collections: all }) {
  const exact = new Map((all ?? []).map((one) => [one.name, one]))
  return card("Collections", { actions: link("/collections", "all collections") },
    table({
      label: "Collections",
      rows: status.collections.filter((one) => one.kind !== "errors"),
      keyOf: (row) => row.name,
      columns: [
        { name: "name", show: (row) => link(pathOf("collection", row.name), row.name) },
        { name: "kind", kind: "hide-small" },
        { name: "state", show: (row) => badge(row.state) },
        { name: "rows", isNumber: true, show: (row) => count(exact.get(row.name)?.rows) },
        { name: "bytes", title: "size", isNumber: true, show: (row) => bytes(row.bytes) },
      ],
    }))
}

function sources({ sources: found }) {
  return card("Sources", { actions: link("/flow", "flow") },
    table({
      label: "Sources",
      rows: found,
      keyOf: (row) => row.name,
      none: "No sources: clients push the rows.",
      columns: [
        { name: "name" },
        { name: "state", show: (row) => badge(row.state) },
        { name: "lag", show: (row) => lag(row.lag) },
      ],
    }))
}

function sinks({ sinks: found }) {
  return found.length > 0 && card("Sinks", null,
    table({
      label: "Sinks",
      rows: found,
      keyOf: (row) => row.name,
      columns: [
        { name: "name" },
        { name: "connector" },
        { name: "state", show: (row) => badge(row.state) },
        { name: "behind", isNumber: true, show: (row) => count(row.behind) },
      ],
    }))
}

function replicas({ replicas: found }) {
  return found.length > 0 && card("Processes", null,
    table({
      label: "Processes",
      rows: found,
      keyOf: (row) => row.writer,
      columns: [
        { name: "process", show: (row) => `${row.host} ${row.pid}` },
        { name: "role", show: (row) => badge(row.state || row.role, row.role) },
        { name: "behind", isNumber: true, show: (row) => count(row.behind) },
      ],
    }))
}
