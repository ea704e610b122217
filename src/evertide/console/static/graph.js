// A graph on the page: lines in SVG, and above them the nodes as ordinary elements, so that they can be read, focused and
// clicked as such. It runs from left to right, or downwards.

import { h } from "./dom.js"
import { curve, layered } from "./layout.js"

const MARGIN = 16
const known = new Map()

// nodes: [{id, width, height, layer?, view: () => description}], edges: [{from, to, isBusy?}]
export function graph({ label, nodes, edges, fit, isDown = false, gap = 44, scaleMin = 0.7 }) {
  const laid = layOut(label, nodes, edges, isDown ? { isDown, gapX: gap } : { gapX: gap, gapXMax: 2.6 * gap, fit: fit - 2 * MARGIN })
  const width = laid.width + 2 * MARGIN
  const height = laid.height + 2 * MARGIN
  const scale = Math.min(1, Math.max(scaleMin, fit / width))
  const busy = new Map(edges.map((one) => [`${one.from}\u0000${one.to}`, one.isBusy]))
  return h(
    "div",
    { class: "graph", role: "group", "aria-label": label, tabindex: 0 },
    h(
      "div",
      { class: "graph-room", style: { width: `${Math.floor(width * scale)}px`, height: `${Math.ceil(height * scale)}px` } },
      h(
        "div",
        { class: "graph-plane", style: { width: `${width}px`, height: `${height}px`, transform: `scale(${scale})` } },
        h(
          "svg",
          { class: "graph-lines", width, height, "aria-hidden": "true" },
          h("g", { transform: `translate(${MARGIN} ${MARGIN})` },
            laid.edges.map((one) => h("g", { key: `${one.from} ${one.to}` },
              h("path", { class: "line", d: one.path }),
              busy.get(`${one.from}\u0000${one.to}`) && h("path", { class: "line flowing", d: one.path }),
            )),
          ),
        ),
        nodes.map((one) => {
          const { x, y } = laid.nodes.get(one.id)
          const style = { left: `${x + MARGIN}px`, top: `${y + MARGIN}px`, width: `${one.width}px`, height: `${one.height}px` }
          return h("div", { key: one.id, class: "graph-node", style }, one.view())
        }),
      ),
    ),
  )
}

// Numbers change every second, the graph rarely: the layout is cached until the graph changes.
function layOut(label, nodes, edges, options) {
  const text = JSON.stringify([nodes.map(({ id, width, height, layer }) => [id, width, height, layer]), edges.map(({ from, to }) => [from, to]), options])
  if (known.get(label)?.text !== text) known.set(label, { text, laid: computeLayout(nodes, edges, options) })
  return known.get(label).laid
}

function computeLayout(nodes, edges, { isDown, ...options }) {
  if (!isDown) {
    const laid = layered(nodes, edges, options)
    return { ...laid, edges: laid.edges.map((one) => ({ ...one, path: curve(one.points) })) }
  }
  const turned = nodes.map((one) => ({ ...one, width: one.height, height: one.width }))
  const laid = layered(turned, edges, { ...options, gapY: 24 })
  return {
    width: laid.height,
    height: laid.width,
    nodes: new Map([...laid.nodes].map(([id, box]) => [id, { x: box.y, y: box.x }])),
    edges: laid.edges.map((one) => ({ ...one, path: curve(one.points, true) })),
  }
}
