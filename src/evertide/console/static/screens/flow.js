// The data flow: sources, tables, views, sinks. The operators of the chosen view are shown below.

import { h } from "../dom.js"
import { brief, bytes, lastTime, seconds } from "../format.js"
import { graph } from "../graph.js"
import { icon } from "../icons.js"
import { measureWidth } from "../measure.js"
import { card, empty, errorBox, link, loadingOrError, pathOf, tone } from "../parts.js"
import { drawCost, drawPlan, openPlan } from "./plan.js"

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
    plan ? [h("p", { class: "crumbs", once: bringIntoView }, h("strong", null, chosen), " · ", link(pathOf("collection", chosen), "its SQL, rows and changes")), plan.view(drawPlan, drawCost)] : h("p", { class: "quiet hint" }, "Choose a view to see how it is maintained: its operators, their cost, and their state."),
  ]
}

function bringIntoView(node) {
  requestAnimationFrame(() => node.scrollIntoView({ block: "start" }))
}

function legend() {
  return h("div", { class: "legend", "aria-hidden": "true" }, ["source", "table", "view", "sink"].map((kind) => h("span", { class: `kind ${kind}` }, icon(kind), kind)))
}

function drawFlow(found, chosen) {
  const { props, width } = measureWidth("flow", 900)
  if (width < NARROW) return h("div", props, listFlow(found, chosen))
  const last = found.nodes.length
  const layers = { source: 0, table: 1, view: 2, sink: last }
  const busy = new Map(found.nodes.map((one) => [one.id, (one.rows_per_s ?? 0) > 0]))
  return h("div", props, graph({
    label: "Data flow from sources to sinks",
    fit: width,
    gap: 70,
    scaleMin: 0.7,
    nodes: found.nodes.map((one) => ({ id: one.id, ...SIZE, layer: layers[one.kind] ?? 1, view: () => node(one, chosen) })),
    edges: found.edges.map(({ from, to }) => ({ from, to, isBusy: busy.get(from) })),
  }))
}

// On a phone: the same nodes below each other, each below all that it reads.
function listFlow(found, chosen) {
  const byId = new Map(found.nodes.map((one) => [one.id, one]))
  const inputs = new Map(found.nodes.map((one) => [one.id, []]))
  for (const { from, to } of found.edges) inputs.get(to)?.push(from)
  const depths = new Map()
  const depth = (id) => {
    if (!depths.has(id)) {
      depths.set(id, 0) // ends a cycle
      depths.set(id, Math.max(0, ...(inputs.get(id) ?? []).map((from) => depth(from) + 1)))
    }
    return depths.get(id)
  }
  const rank = { source: 0, table: 1, view: 2, sink: 3 }
  const ordered = found.nodes.toSorted((a, b) => rank[a.kind] - rank[b.kind] || depth(a.id) - depth(b.id) || a.name.localeCompare(b.name))
  return h("ul", { class: "flow-list", "aria-label": "Data flow from sources to sinks" }, ordered.map((one) => {
    const read = inputs.get(one.id).map((id) => byId.get(id)?.name).filter(Boolean)
    return h("li", { key: one.id }, node(one, chosen), read.length > 0 && h("p", { class: "quiet" }, `${one.kind === "sink" ? "receives" : "reads"} ${read.join(", ")}`))
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
