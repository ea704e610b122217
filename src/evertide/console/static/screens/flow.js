// The data flow: sources, tables, views, sinks. The operators of the chosen view are shown below.

import { h } from "../dom.js"
import { brief, bytes, lastTime, seconds } from "../format.js"
import { graph } from "../graph.js"
import { icon } from "../icons.js"
import { measureWidth } from "../measure.js"
import { card, empty, errorBox, loadingOrError, pathOf, tone } from "../parts.js"
import { openPlan } from "./plan.js"

const SIZE = { width: 208, height: 74 }
const NARROW = 600

export default {
  title: "Flow",
  needs: ["graph"],
  open: ([chosen = ""], redraw) => {
    const plan = chosen && openPlan(chosen, redraw)
    return { view: (model) => view(model, chosen, plan), close: () => plan && plan.close() }
  },
}

function view(model, chosen, plan) {
  const { graph: found, errors } = model
  if (!found) return loadingOrError(errors.graph, "the flow")
  if (!found.nodes.length) return empty("The pipeline has no tables.", "The script declares no table.")
  return [
    errorBox(errors.graph, "the flow"),
    card("", { class: "graph-card", label: "Data flow" }, legend(), drawFlow(found, chosen)),
    plan ? plan.view() : h("p", { class: "quiet hint" }, "Choose a view to see how it is maintained: its operators, their cost, and their state."),
  ]
}

function legend() {
  return h("div", { class: "legend", "aria-hidden": "true" }, ["source", "table", "view", "sink"].map((kind) => h("span", { class: `kind ${kind}` }, icon(kind), kind)))
}

function drawFlow(found, chosen) {
  const { props, width } = measureWidth("flow", 900)
  const isNarrow = width < NARROW
  const size = { ...SIZE, width: isNarrow ? 156 : SIZE.width }
  const last = found.nodes.length
  const layers = { source: 0, table: 1, view: 2, sink: last }
  const busy = new Map(found.nodes.map((one) => [one.id, (one.rows_per_s ?? 0) > 0]))
  return h("div", props, graph({
    label: "Data flow from sources to sinks",
    fit: width,
    gap: isNarrow ? 26 : 70,
    scaleMin: isNarrow ? 0.58 : 0.7,
    nodes: found.nodes.map((one) => ({ id: one.id, ...size, layer: layers[one.kind] ?? 1, view: () => node(one, chosen) })),
    edges: found.edges.map(({ from, to }) => ({ from, to, isBusy: busy.get(from) })),
  }))
}

function node(one, chosen) {
  const isChosen = one.kind === "view" && one.name === chosen
  const facts = [
    one.upper != null && ["as of", lastTime(one.upper), "complete up to transaction"],
    one.lag_s != null && ["lag", seconds(one.lag_s)],
    one.rows != null && ["rows", brief(one.rows)],
    one.rows == null && one.bytes ? ["size", bytes(one.bytes)] : null,
    one.rows_per_s != null && ["rows/s", brief(one.rows_per_s)],
  ].filter(Boolean)
  const label = `${one.kind} ${one.name}, ${one.state || "state unknown"}, ${facts.map(([name, value, words]) => `${words ?? name} ${value}`).join(", ")}`
  const inside = [
    h("span", { class: "node-head" }, icon(one.kind), h("span", { class: "node-name" }, one.name), h("span", { class: `dot-mark ${tone(one.state)}`, title: one.state })),
    h("span", { class: "node-facts" }, facts.map(([name, value, words]) => h("span", { class: "node-fact", title: words ?? null }, h("small", null, name), h("b", null, value)))),
  ]
  const props = { class: `node ${one.kind} ${tone(one.state)} ${isChosen ? "chosen" : ""}`, "aria-label": label, "data-node": one.name }
  if (one.kind === "view") return h("a", { ...props, href: `#${isChosen ? "/flow" : pathOf("flow", one.name)}`, "aria-current": isChosen ? "true" : null }, inside)
  if (one.kind === "table") return h("a", { ...props, href: `#${pathOf("collection", one.name)}` }, inside)
  return h("div", { ...props, tabindex: 0, role: "note" }, inside)
}
