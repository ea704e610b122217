// Descriptions of elements as plain values, and the code that updates the page to match them.
//
// 1. `h(tag, props, ...children)` describes an element. A text is only ever a text node or an attribute: nothing that a
//    row, a name or an error holds is read as markup, and there is no other way to put something on the page.
// 2. `render(parent, children)` changes what differs and leaves the rest alone, so that focus, selection and scrolling
//    survive an update. Children with a `key` are found again by it, others by their place.
// 3. A prop is an attribute, except `on...` (a listener), `style` (an object of CSS properties), `value`, `checked` and
//    `open` (properties, set when the description changes), `once` (called with the new element).

const SVG = "http://www.w3.org/2000/svg"
const KNOWN = Symbol("description")
const LIVE = new Set(["value", "checked", "open", "selected", "indeterminate"])

export function h(tag, props, ...children) {
  return { tag, props: props ?? {}, children: children.flat(Infinity).filter((one) => one != null && one !== false && one !== "") }
}

export function render(parent, children) {
  reconcile(parent, [children].flat(Infinity).filter((one) => one != null && one !== false), parent.namespaceURI === SVG)
}

function reconcile(parent, wanted, inSvg) {
  const found = matches([...parent.childNodes], wanted)
  const kept = new Set(found)
  for (const node of [...parent.childNodes]) if (!kept.has(node)) node.remove()
  let at = parent.firstChild
  wanted.forEach((one, index) => {
    const node = found[index]
    if (node) update(node, one, inSvg)
    if (node && node === at) at = at.nextSibling
    else parent.insertBefore(node ?? create(one, inSvg), at)
  })
}

// For each wanted element, the existing node to reuse, if any.
function matches(nodes, wanted) {
  const keyed = new Map()
  const loose = []
  for (const node of nodes) {
    const key = node[KNOWN]?.props.key
    if (key == null) loose.push(node)
    else keyed.set(key, node)
  }
  let from = 0
  return wanted.map((one) => {
    const key = one?.props?.key
    if (key != null) {
      const node = keyed.get(key)
      keyed.delete(key)
      return node && isLike(node, one) ? node : undefined
    }
    const at = loose.findIndex((node, index) => index >= from && isLike(node, one))
    if (at < 0) return undefined
    from = at + 1
    return loose[at]
  })
}

function isLike(node, wanted) {
  const known = node[KNOWN]
  return typeof wanted === "object" ? known?.tag === wanted.tag && known.props.key === wanted.props.key : node.nodeType === 3
}

function create(wanted, inSvg) {
  if (typeof wanted !== "object") return document.createTextNode(String(wanted))
  const isSvg = inSvg || wanted.tag === "svg"
  const node = isSvg ? document.createElementNS(SVG, wanted.tag) : document.createElement(wanted.tag)
  node[KNOWN] = { tag: wanted.tag, props: {} }
  update(node, wanted, isSvg)
  wanted.props.once?.(node)
  return node
}

function update(node, wanted, inSvg) {
  if (typeof wanted !== "object") {
    if (node.data !== String(wanted)) node.data = String(wanted)
    return
  }
  const before = node[KNOWN].props
  node[KNOWN] = wanted
  reconcile(node, wanted.children, inSvg || wanted.tag === "svg")
  for (const name of Object.keys(before)) if (!(name in wanted.props)) set(node, name, undefined, before[name])
  for (const [name, value] of Object.entries(wanted.props)) if (value !== before[name]) set(node, name, value, before[name])
}

function set(node, name, value, before) {
  if (name === "key" || name === "once") return
  if (name.startsWith("on")) {
    const kind = name.slice(2)
    if (!before) node.addEventListener(kind, listener)
    if (!value) node.removeEventListener(kind, listener)
  } else if (name === "style") {
    for (const each of Object.keys(before ?? {})) if (!(each in (value ?? {}))) node.style.removeProperty(each)
    for (const [each, to] of Object.entries(value ?? {})) node.style.setProperty(each, String(to))
  } else if (LIVE.has(name)) {
    node[name] = value ?? (name === "value" ? "" : false)
  } else if (value == null || value === false) {
    node.removeAttribute(name)
  } else {
    node.setAttribute(name, value === true ? "" : String(value))
  }
}

// One listener for all elements: it calls the handler of the last description.
function listener(event) {
  event.currentTarget[KNOWN]?.props[`on${event.type}`]?.(event)
}
