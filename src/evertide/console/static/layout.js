// Positions of the nodes of a graph without cycles: in layers from left to right, with few crossings. Pure functions.
//
// 1. A node's layer is the length of the longest path to it from a node without inputs, or its own `layer` if that is higher.
// 2. An edge over several layers bends around the nodes between: it gets a waypoint in each of them.
// 3. Within a layer, nodes are sorted by the average place of their neighbours, forwards and backwards; the order with
//    the fewest crossings is kept.
// 4. Each node is then moved towards its neighbours, as far as the nodes beside it allow.
// The layout depends only on the graph, not on the order of its nodes: nothing jumps when numbers change.

const SWEEPS = 12
const MOVES = 24

// nodes: [{id, width, height, layer?}], edges: [{from, to}] -> {width, height, nodes: Map id -> {x, y}, edges: [{from, to, points}]}
export function computeLayers(nodes, edges, { gapX = 60, gapXMax = gapX, gapY = 12, waypoint = 12, fit = 0 } = {}) {
  const known = new Set(nodes.map((one) => one.id))
  const real = edges.filter((one) => known.has(one.from) && known.has(one.to) && one.from !== one.to)
  const layerOf = assignLayers([...nodes].sort(byId), real)
  const { boxes, links, chains } = addWaypoints(nodes, real, layerOf, waypoint)
  const layers = orderLayers(boxes, links)
  placeBoxes(layers, links, gapY)
  const columns = placeColumns(layers, gapX, gapXMax, fit)
  const found = new Map()
  for (const box of boxes) found.set(box.id, { x: columns[box.layer].x, y: box.y, width: box.width, height: box.height })
  return {
    width: columns.at(-1) ? columns.at(-1).x + columns.at(-1).width : 0,
    height: Math.max(0, ...boxes.map((box) => box.y + box.height)),
    nodes: new Map(nodes.map((one) => [one.id, found.get(one.id)])),
    edges: chains.map(({ from, to, ids }) => ({ from, to, points: routeEdge(ids.map((id) => found.get(id)), ids, columns) })),
  }
}

const byId = (one, other) => (one.id < other.id ? -1 : one.id > other.id ? 1 : 0)

function assignLayers(nodes, edges) {
  const inputs = new Map(nodes.map((one) => [one.id, edges.filter((edge) => edge.to === one.id).map((edge) => edge.from)]))
  const least = new Map(nodes.map((one) => [one.id, one.layer ?? 0]))
  const found = new Map()
  const visit = (id, path) => {
    if (found.has(id)) return found.get(id)
    if (path.has(id)) return 0 // a cycle should not be there; it must not hang the page
    path.add(id)
    const layer = Math.max(least.get(id), ...inputs.get(id).map((from) => visit(from, path) + 1))
    path.delete(id)
    found.set(id, layer)
    return layer
  }
  nodes.forEach((one) => visit(one.id, new Set()))
  const used = [...new Set(found.values())].sort((a, b) => a - b)
  return new Map([...found].map(([id, layer]) => [id, used.indexOf(layer)]))
}

function addWaypoints(nodes, edges, layerOf, height) {
  const boxes = nodes.map((one) => ({ id: one.id, width: one.width, height: one.height, layer: layerOf.get(one.id), y: 0 })).sort(byId)
  const links = []
  const chains = []
  for (const { from, to } of [...edges].sort((a, b) => (a.from + a.to < b.from + b.to ? -1 : 1))) {
    const ids = [from]
    for (let layer = layerOf.get(from) + 1; layer < layerOf.get(to); layer += 1) {
      const id = `${from}\u0000${to}\u0000${layer}`
      boxes.push({ id, width: 0, height, layer, y: 0 })
      ids.push(id)
    }
    ids.push(to)
    ids.slice(1).forEach((id, at) => links.push([ids[at], id]))
    chains.push({ from, to, ids })
  }
  return { boxes, links, chains }
}

function neighbours(links, isForward) {
  const found = new Map()
  for (const [from, to] of links) {
    const [at, other] = isForward ? [to, from] : [from, to]
    if (!found.has(at)) found.set(at, [])
    found.get(at).push(other)
  }
  return found
}

function orderLayers(boxes, links) {
  const layers = []
  for (const box of boxes) (layers[box.layer] ??= []).push(box)
  const before = neighbours(links, true)
  const after = neighbours(links, false)
  let best = layers.map((layer) => [...layer])
  let least = crossings(best, links)
  for (let sweep = 0; sweep < SWEEPS && least > 0; sweep += 1) {
    const isForward = sweep % 2 === 0
    const steps = isForward ? layers : [...layers].reverse()
    for (const layer of steps) sortByMiddle(layer, isForward ? before : after, layers)
    const found = crossings(layers, links)
    if (found < least) {
      least = found
      best = layers.map((layer) => [...layer])
    }
  }
  return best
}

function sortByMiddle(layer, others, layers) {
  const place = new Map(layers.flat().map((box) => [box.id, 0]))
  layers.forEach((each) => each.forEach((box, at) => place.set(box.id, at / Math.max(1, each.length - 1))))
  const middle = new Map(layer.map((box) => {
    const beside = others.get(box.id)
    return [box.id, beside ? beside.reduce((sum, id) => sum + place.get(id), 0) / beside.length : place.get(box.id)]
  }))
  layer.sort((a, b) => middle.get(a.id) - middle.get(b.id))
}

function crossings(layers, links) {
  const at = new Map()
  layers.forEach((layer) => layer.forEach((box, place) => at.set(box.id, [box.layer, place])))
  const byLayer = new Map()
  for (const [from, to] of links) {
    const [layer, place] = at.get(from)
    if (!byLayer.has(layer)) byLayer.set(layer, [])
    byLayer.get(layer).push([place, at.get(to)[1]])
  }
  let count = 0
  for (const each of byLayer.values()) {
    for (let i = 0; i < each.length; i += 1) {
      for (let j = i + 1; j < each.length; j += 1) if ((each[i][0] - each[j][0]) * (each[i][1] - each[j][1]) < 0) count += 1
    }
  }
  return count
}

function placeBoxes(layers, links, gap) {
  const boxes = new Map(layers.flat().map((box) => [box.id, box]))
  for (const layer of layers) separate(layer, gap)
  const before = neighbours(links, true)
  const after = neighbours(links, false)
  for (let move = 0; move < MOVES; move += 1) {
    const others = move % 2 === 0 ? before : after
    for (const layer of move % 2 === 0 ? layers : [...layers].reverse()) {
      for (const box of layer) {
        const beside = (others.get(box.id) ?? []).map((id) => boxes.get(id))
        if (beside.length) box.y = beside.reduce((sum, one) => sum + one.y + one.height / 2, 0) / beside.length - box.height / 2
      }
      separate(layer, gap)
    }
  }
  const top = Math.min(...[...boxes.values()].map((box) => box.y))
  for (const box of boxes.values()) box.y -= top
}

// Boxes that overlap are moved apart, half up and half down, in their order.
function separate(layer, gap) {
  const wanted = layer.map((box) => box.y)
  const down = []
  layer.forEach((box, at) => down.push(at ? Math.max(wanted[at], down[at - 1] + layer[at - 1].height + gap) : wanted[at]))
  const up = []
  for (let at = layer.length - 1; at >= 0; at -= 1) {
    up[at] = at < layer.length - 1 ? Math.min(wanted[at], up[at + 1] - layer[at].height - gap) : wanted[at]
  }
  layer.forEach((box, at) => (box.y = (down[at] + up[at]) / 2))
}

// Columns are moved apart, to fill the width `fit`, by at most `gapMax`.
function placeColumns(layers, gapMin, gapMax, fit) {
  const widths = layers.map((layer) => Math.max(...layer.map((box) => box.width)))
  const room = (fit - widths.reduce((sum, one) => sum + one, 0)) / Math.max(1, layers.length - 1)
  const gap = Math.floor(Math.min(Math.max(gapMin, room), gapMax))
  let x = 0
  return widths.map((width) => {
    const column = { x, width }
    x += width + gap
    return column
  })
}

function routeEdge(boxes, ids, columns) {
  const points = []
  boxes.forEach((box, at) => {
    const y = box.y + box.height / 2
    const column = columns.find((each) => each.x === box.x)
    if (at > 0) points.push([box.x, y])
    if (at < boxes.length - 1) points.push([at === 0 ? box.x + box.width : box.x + column.width, y])
  })
  return points
}

// A curve through the points that starts and ends horizontally; vertically, if `isTurned`.
export function curve(points, isTurned = false) {
  const at = (x, y) => (isTurned ? `${round(y)} ${round(x)}` : `${round(x)} ${round(y)}`)
  let path = `M${at(...points[0])}`
  for (let next = 1; next < points.length; next += 1) {
    const [[x0, y0], [x1, y1]] = [points[next - 1], points[next]]
    const bend = (x1 - x0) / 2
    path += y0 === y1 ? `L${at(x1, y1)}` : `C${at(x0 + bend, y0)} ${at(x1 - bend, y1)} ${at(x1, y1)}`
  }
  return path
}

const round = (value) => Math.round(value * 10) / 10
