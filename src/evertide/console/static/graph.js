// A graph on the page: lines in SVG, and above them the nodes as ordinary elements, so that they can be read, focused and
// clicked as such. It runs from left to right, or downwards.

import { h } from "./dom.js"
import { computeLayers, curve } from "./layout.js"

const MARGIN = 16
const layouts = new Map()

// nodes: [{id, width, height, layer?, view: () => description}], edges: [{from, to, isBusy?}]
export function graph({ label, nodes, edges, fit, isDown = false, gap = 44, scaleMin = 0.7 }) {
  const layout = layOut(label, nodes, edges, isDown ? { isDown, gapX: gap } : { gapX: gap, gapXMax: 2.6 * gap, fit: fit - 2 * MARGIN })
  const width = layout.width + 2 * MARGIN
  const height = layout.height + 2 * MARGIN
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
            layout.edges.map((one) => h("g", { key: `${one.from} ${one.to}` },
              h("path", { class: "line", d: one.path }),
              busy.get(`${one.from}\u0000${one.to}`) && h("path", { class: "line flowing", d: one.path }),
            )),
          ),
        ),
        nodes.map((one) => {
          const { x, y } = layout.nodes.get(one.id)
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
  if (layouts.get(label)?.text !== text) layouts.set(label, { text, layout: computeLayout(nodes, edges, options) })
  return layouts.get(label).layout
}

function computeLayout(nodes, edges, { isDown, ...options }) {
  if (!isDown) {
    const layout = computeLayers(nodes, edges, options)
    return { ...layout, edges: layout.edges.map((one) => ({ ...one, path: curve(one.points) })) }
  }
  const turned = nodes.map((one) => ({ ...one, width: one.height, height: one.width }))
  const layout = computeLayers(turned, edges, { ...options, gapY: 24 })
  return {
    width: layout.height,
    height: layout.width,
    nodes: new Map([...layout.nodes].map(([id, box]) => [id, { x: box.y, y: box.x }])),
    edges: layout.edges.map((one) => ({ ...one, path: curve(one.points, true) })),
  }
}
