// The operators of a view: how each is maintained, what a small transaction costs, what state it has.

import { get } from "../api.js"
import { h } from "../dom.js"
import { bytes, count, plural } from "../format.js"
import { graph } from "../graph.js"
import { measureWidth } from "../measure.js"
import { card, errorBox, link, loadingOrError, pathOf, table } from "../parts.js"
import { Poll } from "../poll.js"

const REPEAT_S = 5
const WIDTH = 300
const NARROW = 600
const COSTS = { none: "none", delta: "the changed rows", "touched groups": "the groups that changed", scan: "all rows of the other side", "whole input": "all rows, recomputed" }

// The plan of one view, requested again from time to time, because state grows.
export function openPlan(name, redraw) {
  const poll = new Poll(() => get(`/v1/views/${encodeURIComponent(name)}/explain`, { format: "json" }), redraw, REPEAT_S)
  return {
    view: () => (poll.value ? [errorBox(poll.error, "the plan"), drawPlan(name, poll.value)] : loadingOrError(poll.error, "the plan")),
    close: () => poll.close(),
  }
}

function drawPlan(name, explanation) {
  const found = explanation.views?.find((one) => one.name === name) ?? explanation.views?.[0]
  if (!found) return h("p", { class: "quiet" }, "The server does not know the operators of this view.")
  const states = new Map((explanation.arrangements ?? []).map((one) => [one.name, one]))
  const used = [...new Set(found.operators.flatMap((one) => one.state))].map((each) => states.get(each)).filter(Boolean)
  const { props, width } = measureWidth("plan", 900)
  const size = width < NARROW ? 250 : WIDTH
  return [
    card(`How ${name} is maintained`, { class: "graph-card", "data-plan": name, once: (node) => requestAnimationFrame(() => node.scrollIntoView({ block: "start" })), key: name, actions: link(pathOf("collection", name), "its rows") },
      h("div", props, graph({
        label: `Operators of ${name}, from its tables to its rows`,
        fit: width,
        isDown: true,
        scaleMin: 0.62,
        gap: 30,
        nodes: found.operators.map((one) => ({ id: String(one.number), width: size, height: heightOf(one, states, size), view: () => operator(one, states) })),
        edges: found.operators.flatMap((one) => one.inputs.map((from) => ({ from: String(from), to: String(one.number), isBusy: false }))),
      })),
      h("p", { class: "quiet ways" }, describeRuns(found.ways))),
    card("State", { actions: h("span", { class: "quiet" }, "arrangements: collections by a key, so that a change finds the rows with the same key") }, table({
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
    })),
  ]
}

function describeRuns(runs) {
  if (!runs) return ""
  const { small, large, recompute } = runs
  return `Since the process started: ${plural(small, "small run")} in this process, ${count(large)} distributed over executors, ${count(recompute)} recomputed in full.`
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
