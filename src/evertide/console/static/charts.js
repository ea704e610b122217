// Charts in SVG. Each has a description in words, and the arrow keys step through its values.

import { h } from "./dom.js"
import { brief } from "./format.js"
import { measureWidth } from "./measure.js"

const PAD = { top: 10, right: 12, bottom: 24, left: 52 }
const cursors = new Map()
let changed = () => {}

export function onCursorMove(listener) {
  changed = listener
}

// samples: [[at_s, value]]
export function sparkline(samples, label, { width = 110, height = 26 } = {}) {
  const kept = samples.filter(([, value]) => value != null)
  const known = kept.map(([, value]) => value)
  if (known.length < 2) return h("span", { class: "spark-none", title: "Drawn once there are two values" }, "·")
  const [low, high] = [Math.min(...known), Math.max(...known)]
  const y = (value) => (high === low ? height / 2 : height - 3 - ((value - low) / (high - low)) * (height - 6))
  const [first, last] = [kept[0][0], kept.at(-1)[0]]
  const x = (at) => 1 + ((kept[at][0] - first) / (last - first || 1)) * (width - 5)
  const line = known.map((value, at) => `${at ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("")
  const text = `${label}: from ${brief(known[0])} to ${brief(known.at(-1))}`
  return h(
    "svg",
    { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": text },
    h("path", { class: "spark-area", d: `${line}L${x(known.length - 1).toFixed(1)} ${height}L1 ${height}Z` }),
    h("path", { class: "spark-line", d: line }),
    h("circle", { class: "spark-end", cx: x(known.length - 1), cy: y(known.at(-1)), r: 2 }),
  )
}

// points: [{x, y, words}]; `x` is a number, or a text with kind "bars"; `words` is the caption of the point.
export function plot({ name, label, points, kind = "area", height = 180, formatX = brief, formatY = brief, span = 0 }) {
  const { props, width } = measureWidth(name)
  const inner = { width: Math.max(40, width - PAD.left - PAD.right), height: height - PAD.top - PAD.bottom }
  const isNamed = kind === "bars" && points.some((one) => typeof one.x !== "number")
  const ys = points.map((one) => one.y)
  const [bottom, top, step] = range(Math.min(0, ...ys), Math.max(0, ...ys))
  const xs = isNamed ? [0, points.length - 1] : [Math.min(...points.map((one) => one.x)), Math.max(...points.map((one) => one.x))]
  const slot = inner.width / Math.max(1, points.length)
  const spread = xs[1] - xs[0] || 1
  const inset = kind === "bars" ? 10 : 0
  const x = (one, at) => PAD.left + (isNamed ? (at + 0.5) * slot : inset + ((one.x - xs[0]) / spread) * (inner.width - 2 * inset))
  const y = (value) => PAD.top + inner.height - ((value - bottom) / (top - bottom)) * inner.height
  const at = Math.min(cursors.get(name) ?? -1, points.length - 1)
  const places = points.map(x)
  const text = points.length ? `${label}. ${points.length} values, the last is ${formatY(points.at(-1).y)}.` : `${label}. No values yet.`
  return h(
    "figure",
    { class: "plot", ...props },
    h(
      "svg",
      { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0, "aria-label": text, ...trackCursor(name, places) },
      ticks(bottom, top, step).map((value) => [
        h("line", { class: "grid", x1: PAD.left, x2: width - PAD.right, y1: y(value), y2: y(value) }),
        h("text", { class: "tick", x: PAD.left - 8, y: y(value) + 4, "text-anchor": "end" }, formatY(value)),
      ]),
      points.length > 0 && axis(points, places, isNamed, formatX, height, inner.width),
      points.length > 0 && marks(kind, points, places, y, y(Math.max(bottom, 0)), isNamed ? slot : Math.max(2, Math.min(18, span ? (span / spread) * inner.width : slot * 0.7))),
      at >= 0 && h("line", { class: "cursor", x1: places[at], x2: places[at], y1: PAD.top, y2: PAD.top + inner.height }),
      at >= 0 && h("circle", { class: "cursor-dot", cx: places[at], cy: y(points[at].y), r: 4 }),
    ),
    h("figcaption", { class: "plot-words", "aria-live": "polite" }, (points[at] ?? points.at(-1))?.words ?? ""),
  )
}

function marks(kind, points, places, y, base, slot) {
  if (kind === "bars") {
    const width = Math.max(1.5, slot * 0.78)
    return points.map((one, at) => {
      const top = Math.min(y(one.y), base)
      return h("rect", { class: "bar", x: places[at] - width / 2, y: top, width, height: Math.max(1, Math.abs(base - y(one.y))), rx: Math.min(2, width / 3) })
    })
  }
  const line = points.map((one, at) => `${at ? "L" : "M"}${places[at].toFixed(1)} ${y(one.y).toFixed(1)}`).join("")
  return [
    kind === "area" && h("path", { class: "area", d: `${line}L${places.at(-1).toFixed(1)} ${base}L${places[0].toFixed(1)} ${base}Z` }),
    h("path", { class: "curve", d: line }),
    points.length < 60 && points.map((one, at) => h("circle", { class: "dot", cx: places[at], cy: y(one.y), r: 2 })),
  ]
}

function axis(points, places, isNamed, formatX, height, width) {
  const room = Math.max(2, Math.floor(width / 96))
  const every = Math.max(1, Math.ceil(points.length / room))
  let free = -Infinity
  return points.map((one, at) => {
    if (isNamed ? at % every : places[at] < free) return null
    const text = String(isNamed ? one.x : formatX(one.x))
    const short = text.length > 13 ? `${text.slice(0, 12)}…` : text
    free = places[at] + 96
    if (!isNamed && places[at] > PAD.left + width - 30 && at > 0) return null
    return h("text", { class: "tick", x: places[at], y: height - 6, "text-anchor": isNamed ? "middle" : at ? "middle" : "start" }, short)
  })
}

function trackCursor(name, places) {
  const move = (to) => {
    if (cursors.get(name) === to) return
    cursors.set(name, to)
    changed()
  }
  return {
    onpointermove: (event) => {
      const left = event.currentTarget.getBoundingClientRect().left
      move(places.reduce((best, place, at) => (Math.abs(place + left - event.clientX) < Math.abs(places[best] + left - event.clientX) ? at : best), 0))
    },
    onpointerleave: () => move(-1),
    onblur: () => move(-1),
    onkeydown: (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key]
      if (!step || !places.length) return
      event.preventDefault()
      const at = cursors.get(name) ?? -1
      move(at < 0 ? places.length - 1 : Math.max(0, Math.min(places.length - 1, at + step)))
    },
  }
}

// Round numbers around the values: from, to, and the step between two lines.
function range(low, high) {
  const spread = high - low || 1
  const rough = spread / 4
  const power = 10 ** Math.floor(Math.log10(rough))
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough)
  return [Math.floor(low / step) * step, Math.max(Math.ceil(high / step) * step, step), step]
}

function ticks(low, high, step) {
  const found = []
  for (let at = 0; low + at * step <= high + step / 1e6; at += 1) found.push(low + at * step)
  return found
}
