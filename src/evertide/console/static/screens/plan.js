// The operators of a view: how each is maintained, what a small transaction costs it, what state it keeps.

import { get } from "../api.js"
import { h } from "../dom.js"
import { bytes, count, plural } from "../format.js"
import { graph } from "../graph.js"
import { measured } from "../measure.js"
import { card, link, missing, pathOf, table, trouble } from "../parts.js"

const AGAIN_MS = 5000
const WIDTH = 300
const NARROW = 600
const COSTS = { none: "nothing", delta: "what changed", "touched groups": "the groups that changed", scan: "all rows of the other side", "whole input": "everything, again" }

// Something to draw for one view; asks now and then, as state grows.
export function planOf(name, redraw) {
  let told = null
  let error = null
  const ask = async () => {
    try {
      told = await get(`/v1/views/${encodeURIComponent(name)}/explain`, { format: "json" })
      error = null
    } catch (wrong) {
      error = wrong
    }
    redraw()
  }
  ask()
  const timer = setInterval(() => !document.hidden && ask(), AGAIN_MS)
  return {
    view: () => (told ? [trouble(error, "the plan"), drawn(name, told)] : missing(error, "the plan")),
    close: () => clearInterval(timer),
  }
}

function drawn(name, told) {
  const found = told.views?.find((one) => one.name === name) ?? told.views?.[0]
  if (!found) return h("p", { class: "quiet" }, "Nothing is known of its operators.")
  const states = new Map((told.arrangements ?? []).map((one) => [one.name, one]))
  const used = [...new Set(found.operators.flatMap((one) => one.state))].map((each) => states.get(each)).filter(Boolean)
  const { props, width } = measured("plan", 900)
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
      h("p", { class: "quiet ways" }, ways(found.ways))),
    card("State", { actions: h("span", { class: "quiet" }, "arrangements: collections by a key, so that a change finds what it meets") }, table({
      label: "State",
      rows: used,
      keyOf: (row) => row.name,
      none: "It keeps none: each change is worked out by itself.",
      columns: [
        { name: "of", title: "what" },
        { name: "key", title: "by", show: (row) => (row.key.length ? row.key.join(", ") : "all of it") },
        { name: "rows", isNumber: true, show: (row) => count(row.rows) },
        { name: "bytes", title: "size", isNumber: true, show: (row) => bytes(row.bytes) },
      ],
    })),
  ]
}

function ways(told) {
  if (!told) return ""
  const { small, large, recompute } = told
  return `Since the process started: ${plural(small, "small run")} in this process, ${count(large)} spread over Spark, ${count(recompute)} from scratch.`
}

// As the style has it: all lines but those of the words are cut off where the box ends.
function heightOf(one, states, width) {
  const lines = Math.min(3, Math.ceil(words(one).length / ((width - 26) / 7.2)))
  return 56 + lines * 16 + kept(one, states).length * 18
}

function kept(one, states) {
  return one.state.map((each) => states.get(each)).filter(Boolean)
}

// What it does, without its kind, which stands above it.
function words(one) {
  return one.what.startsWith(`${one.kind} `) ? one.what.slice(one.kind.length + 1) : one.what
}

function operator(one, states) {
  return h(
    "div",
    { class: `operator cost-${one.cost.replace(" ", "-")}`, tabindex: 0, "data-operator": one.number, title: `${one.what}\n${one.how}` },
    h("span", null, h("b", null, one.kind), h("span", { class: "quiet" }, ` ${one.how}`)),
    h("span", { class: "operator-what" }, words(one)),
    h("span", null, h("span", { class: "quiet" }, "a change costs "), COSTS[one.cost] ?? one.cost),
    kept(one, states).map(({ rows, bytes: size }) => h("span", { class: "operator-state" }, `keeps ${count(rows)} rows, ${bytes(size)}`)),
  )
}
