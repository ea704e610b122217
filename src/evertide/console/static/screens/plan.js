// The operators of a view: how each is maintained, what a small transaction costs, what state it has.

import { get } from "../api.js"
import { h } from "../dom.js"
import { bytes, count, plural } from "../format.js"
import { graph } from "../graph.js"
import { measureWidth } from "../measure.js"
import { card, errorBox, loadingOrError, table } from "../parts.js"
import { Poll } from "../poll.js"

const REPEAT_S = 5
const WIDTH = 300
const NARROW = 600
const COSTS = { none: "none", delta: "the changed rows", "touched groups": "the groups that changed", scan: "all rows of the other side", "whole input": "all rows, recomputed" }

// The plan of one view, requested again from time to time, because state grows.
export function openPlan(name, redraw) {
  const poll = new Poll(() => get(`/v1/views/${encodeURIComponent(name)}/explain`, { format: "json" }), redraw, REPEAT_S)
  return {
    // `parts` are functions that draw a view's explanation: `drawPlan` and `drawCost`.
    view: (...parts) => (poll.value ? [errorBox(poll.error, "the plan"), drawParts(name, poll.value, parts)] : loadingOrError(poll.error, "the plan")),
    close: () => poll.close(),
  }
}

function drawParts(name, explanation, parts) {
  const found = explanation.views?.find((one) => one.name === name) ?? explanation.views?.[0]
  if (!found) return h("p", { class: "quiet" }, "The server does not know the operators of this view.")
  const states = new Map((explanation.arrangements ?? []).map((one) => [one.name, one]))
  return parts.map((draw) => draw(name, found, states))
}

// The operators as a graph; as a list where there is no room for one.
export function drawPlan(name, found, states) {
  const { props, width } = measureWidth("plan", 900)
  return card(`How ${name} is maintained`, { class: "graph-card", "data-plan": name, key: name },
    h("div", props, width < NARROW ? listOperators(found, states) : drawOperators(name, found, states, width)),
    h("p", { class: "quiet ways" }, describeRuns(found.ways)))
}

function listOperators(found, states) {
  return h("ol", { class: "flow-list", "aria-label": `Operators of ${found.name}, from its rows to its tables` }, found.operators.map((one) =>
    h("li", { key: String(one.number) }, operator(one, states),
      h("p", { class: "quiet" }, `step ${one.number}${one.inputs.length ? `, reads ${one.inputs.length === 1 ? "step" : "steps"} ${one.inputs.join(" and ")}` : ""}`))))
}

function drawOperators(name, found, states, fit) {
  return graph({
    label: `Operators of ${name}, from its tables to its rows`,
    fit,
    isDown: true,
    scaleMin: 0.62,
    gap: 30,
    nodes: found.operators.map((one) => ({ id: String(one.number), width: WIDTH, height: heightOf(one, states, WIDTH), view: () => operator(one, states) })),
    edges: found.operators.flatMap((one) => one.inputs.map((from) => ({ from: String(from), to: String(one.number), isBusy: false }))),
  })
}

// What a change costs, operator by operator, and the state that is kept for it.
export function drawCost(name, found, states) {
  const used = [...new Set(found.operators.flatMap((one) => one.state))].map((each) => states.get(each)).filter(Boolean)
  const sum = (field) => used.reduce((total, one) => total + (one[field] ?? 0), 0)
  return [
    card("Work for each change", { actions: h("span", { class: "quiet" }, `state: ${count(sum("rows"))} rows, ${bytes(sum("bytes"))}`) }, table({
      label: "Work for each change",
      rows: found.operators,
      keyOf: (row) => String(row.number),
      columns: [
        { name: "number", title: "step", isNumber: true },
        { name: "kind", title: "operator", show: (row) => [h("b", null, row.kind), " ", h("span", { class: "quiet" }, words(row))], kind: "wrapped" },
        { name: "cost", title: "reads", show: (row) => h("span", { class: `cost cost-${row.cost.replace(" ", "-")}` }, COSTS[row.cost] ?? row.cost) },
        { name: "state", title: "keeps", isNumber: true, show: (row) => kept(row, states).map((one) => `${count(one.rows)} rows`).join(", ") || "nothing" },
      ],
    }), h("p", { class: "quiet inset" }, describeRuns(found.ways))),
    drawState(used),
  ]
}

function drawState(used) {
  return card("State", { actions: h("span", { class: "quiet" }, "arrangements: collections by a key, so that a change finds the rows with the same key") }, table({
    label: "State",
    rows: used,
    keyOf: (row) => row.name,
    none: "No state: the operators need only the change itself.",
    columns: [
      { name: "of", title: "what" },
      { name: "key", title: "by", show: (row) => (row.key.length ? row.key.join(", ") : "no key: one group of all rows") },
      { name: "rows", isNumber: true, show: (row) => count(row.rows) },
      { name: "bytes", title: "size", isNumber: true, show: (row) => bytes(row.bytes) },
    ],
  }))
}

function describeRuns(runs) {
  if (!runs) return ""
  const { small, large, wide, recompute } = runs
  return `Since the process started: ${plural(small, "small run")} in this process, ${count(large)} distributed over executors, ${count(wide)} in wide steps, ${count(recompute)} recomputed in full.`
}

// Matches the style: the text wraps, and all other lines are cut off at the end of the box.
function heightOf(one, states, width) {
  const lines = Math.min(3, Math.ceil(words(one).length / ((width - 26) / 7.2)))
  return 56 + lines * 16 + kept(one, states).length * 18
}

function kept(one, states) {
  return one.state.map((each) => states.get(each)).filter(Boolean)
}

// The description without the kind, which is shown above it.
function words(one) {
  return one.what.startsWith(`${one.kind} `) ? one.what.slice(one.kind.length + 1) : one.what
}

function operator(one, states) {
  return h(
    "div",
    { class: `operator cost-${one.cost.replace(" ", "-")}`, tabindex: 0, "data-operator": one.number, title: `${one.what}\n${one.how}` },
    h("span", null, h("b", null, one.kind), h("span", { class: "quiet" }, ` ${one.how}`)),
    h("span", { class: "operator-what" }, words(one)),
    h("span", null, h("span", { class: "quiet" }, "work per change: "), COSTS[one.cost] ?? one.cost),
    kept(one, states).map(({ rows, bytes: size }) => h("span", { class: "operator-state" }, `keeps ${count(rows)} rows, ${bytes(size)}`)),
  )
}
